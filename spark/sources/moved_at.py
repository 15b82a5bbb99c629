"""The time of a row's latest change, past or due, in an outbox or inbox, as SQL expressions.

For an open row, the times of the row that blocks it count as well: the first one of its key. That
lookup is for open rows only, and is one probe of a partial index on open rows. A waiting row counts
as changed now if an earlier row of its key has settled recently: it may have been blocked until
then. All such rows are looked up once for each read, in a separate value (an InitPlan), and only if
a row waits.
"""

from __future__ import annotations

# The waiting rows with an earlier row of their key that has settled recently: a set of `seq`.
#
# After a long transaction, millions of rows have settled recently. So the statement collects only
# rows whose key has a waiting row, by comparing hashes of keys. A join would depend on the
# planner's estimates: it could build its hash table of all settled rows. One-sided rows are left
# out, but the join at the end is a full one: PostgreSQL cannot run a full join as a nested loop.
# The planner expects one waiting row even if thousands came since the last ANALYZE. A nested loop
# would read the settled rows for each of them.
_RELEASED = """
                 WITH waits AS (
                     SELECT {key}, w.seq FROM {table} w WHERE {is_waiting} AND w.key IS NOT NULL),
                 settled AS (
                     SELECT {settled_key}, min(l.seq) AS seq FROM {table} l
                     WHERE l.settled_at >= {lately} AND l.key IS NOT NULL AND (
                         SELECT range_agg(int8range(h.hash, h.hash, '[]'))
                         FROM (SELECT hash_record_extended(ROW({key}), 0) AS hash FROM waits w) h
                         ) @> hash_record_extended(ROW({settled_key}), 0)
                     GROUP BY {settled_key})
                 SELECT range_agg(int8range(w.seq, w.seq, '[]')) FILTER (WHERE w.seq > l.seq)
                 FROM waits w FULL JOIN settled l ON {same_key}"""

# Written as in two indexes.
_WAITS_UPSTREAM = """(
                         w.settled_at IS NULL AND NOT w.waiting AND NOT w.holds_key
                         OR w.settled_at IS NULL AND NOT w.waiting AND w.holds_key)
                         AND w.status = 'INIT'"""
_WAITS_DOWNSTREAM = "w.settled_at IS NULL AND w.status = 'INIT'"


def _released(table: str, *key: str, is_waiting: str) -> str:
    return (
        _RELEASED.replace("{table}", table)
        .replace("{is_waiting}", is_waiting)
        .replace("{key}", ", ".join(f"w.{column}" for column in key))
        .replace("{settled_key}", ", ".join(f"l.{column}" for column in key))
        .replace("{same_key}", " AND ".join(f"l.{column} = w.{column}" for column in key))
    )


UPSTREAM_MOVED_AT = """least({latest}, CASE WHEN o.settled_at IS NULL
         THEN greatest(o.created_at, o.due_at, o.lease_until, (
             SELECT greatest(h.due_at, h.lease_until) FROM {outbox} h
             WHERE h.settled_at IS NULL AND h.holds_key
               AND h.shard = o.shard AND h.key = o.key AND h.seq < o.seq
             ORDER BY h.seq LIMIT 1),
             CASE WHEN o.status = 'INIT' AND NOT o.waiting AND ({released}) @> o.seq
             THEN now() END)
         ELSE greatest(o.created_at, o.settled_at)
    END)""".replace("{released}", _released("{outbox}", "shard", "key", is_waiting=_WAITS_UPSTREAM))
"""For an outbox row, `o`. Requires `{outbox}`, `{latest}` and `{lately}`."""

DOWNSTREAM_MOVED_AT = """least({latest}, CASE WHEN i.settled_at IS NULL
         THEN greatest(i.received_at, i.due_at, i.lease_until, (
             SELECT greatest(h.due_at, h.lease_until) FROM {inbox} h
             WHERE h.settled_at IS NULL AND h.consumer_group = i.consumer_group
               AND h.topic = i.topic AND h.key = i.key AND h.seq < i.seq
             ORDER BY h.seq LIMIT 1),
             CASE WHEN i.status = 'INIT' AND ({released}) @> i.seq
             THEN now() END)
         ELSE greatest(i.received_at, i.settled_at)
    END)""".replace(
    "{released}",
    _released("{inbox}", "consumer_group", "topic", "key", is_waiting=_WAITS_DOWNSTREAM),
)
"""For an inbox row, `i`. Requires `{inbox}`, `{latest}` and `{lately}`."""
