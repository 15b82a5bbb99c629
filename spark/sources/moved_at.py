"""When a row of an outbox or inbox has moved, or is due to, as expressions of SQL.

An open row lives for as long as the row that holds it back: the first one of its key. That lookup
is for open rows only, and is one probe of a partial index on open rows. A row that waits may have
been held back until a moment ago: then an earlier row of its key has settled lately. All such rows
are looked up once a read, in a value of its own (an InitPlan), and only where a row waits.
"""

from __future__ import annotations

# The rows that wait and have an earlier row of their key that has settled lately: a set of `seq`.
#
# Where a transaction was open for long, millions of rows have settled lately, so the statement
# collects only those whose key has a waiting row. It compares hashes of keys for that. A join
# would depend on what the planner expects: it could build its hash table of all that has settled.
# The join at the end is a full one, although rows of one side alone are left out, because
# PostgreSQL cannot run a full join as a nested loop. The planner expects one waiting row where
# thousands came since the last ANALYZE, and a nested loop reads what has settled for each of them.
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

# In the words of two indexes.
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
"""Of an outbox row, `o`. It asks for `{outbox}`, `{latest}` and `{lately}`."""

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
"""Of an inbox row, `i`. It asks for `{inbox}`, `{latest}` and `{lately}`."""
