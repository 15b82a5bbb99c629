"""Damage between two banks, done with SQL, and how a run has to report it.

For each kind of damage the function returns the mismatches that a run then finds. A repair can fix
what failing workers leave: no record, a lapsed lease, an event in error. A repair cannot fix
altered rows at rest, so `SavedRows` restores them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from uuid import UUID

from shieldtx.reconcile.verdicts import Verdict
from tests.verification.faults.bank import TRANSFERRED, auditors_of, by_hand
from tests.verification.faults.banks import Banks
from tests.verification.faults.reconciliation_outcomes import Mismatch

Found = set[Mismatch]

FOR_AUDITORS = 2
"""Refused transfers that are reserved for damage to the entries that auditors removed."""
LAPSED = "statement_timestamp() - interval '1 minute'"


def transfer_each(banks: Banks, accounts: Sequence[str], **fate: str) -> list[UUID]:
    """Make one transfer from each account; return their events in this order."""
    before = set(_transfers(banks))
    banks.upstream.call(
        "clients", by_hand.transfer_each, str(banks.journal), accounts, fate
    ).finish()
    return [event for event in _transfers(banks) if event not in before]


def lose_records(banks: Banks, accounts: Sequence[str], groups: Iterable[str]) -> Found:
    """The broker acknowledges events and loses them. No relay may run upstream."""
    events = transfer_each(banks, accounts)
    banks.upstream.tamper(LOSE, ids=events)
    return _found(Verdict.MISSING_DOWNSTREAM, groups, events)


LOSE = (
    "UPDATE shield_outbox SET status = 'PROCESSED', attempts = 1, "
    "settled_at = statement_timestamp() WHERE event_id = ANY(:ids)"
)


def leave_claimed(banks: Banks, accounts: Sequence[str], groups: Iterable[str]) -> Found:
    """A relay dies with claimed events. No relay may run upstream."""
    events = transfer_each(banks, accounts)
    banks.upstream.execute(
        "UPDATE shield_outbox SET status = 'PROCESSING', attempts = 1, "
        f"lease_token = gen_random_uuid(), lease_until = {LAPSED} WHERE event_id = ANY(:ids)",
        ids=events,
    )
    return _found(Verdict.STUCK, groups, events)


def leave_unclaimed(banks: Banks, accounts: Sequence[str], groups: Iterable[str]) -> Found:
    """No relay claims the events. No relay may run upstream."""
    return _found(Verdict.STUCK, groups, transfer_each(banks, accounts))


def reject(banks: Banks, accounts: Sequence[str], groups: Iterable[str]) -> Found:
    """The broker refuses events permanently, after an attempt without an answer.

    So no local rollback runs. No relay may run upstream.
    """
    events = transfer_each(banks, accounts)
    banks.upstream.execute(
        "UPDATE shield_outbox SET status = 'PROCESSING' WHERE event_id = ANY(:ids)", ids=events
    )
    banks.upstream.execute(
        "UPDATE shield_outbox SET status = 'FAILED', attempts = 3, "
        "unconfirmed = true, settled_at = statement_timestamp(), "
        "last_error = 'refused by the broker' "
        "WHERE event_id = ANY(:ids)",
        ids=events,
    )
    return _found(Verdict.PARKED, groups, events)


def leave_rollbacks_pending(banks: Banks, accounts: Sequence[str]) -> Found:
    """The bank refuses transfers, and the rollbacks vanish. No relay may run downstream."""
    down = banks.downstream
    events = transfer_each(banks, accounts, refuse="at once")
    gave_up = (
        "SELECT count(*) FROM shield_inbox WHERE consumer_group = :group "
        "AND status = 'MAX_RECONSUMED' AND event_id = ANY(:ids)"
    )
    banks.until(
        lambda: down.one(gave_up, group=down.group, ids=events) == len(events), "all are refused"
    )
    banks.until(lambda: not banks.upstream.unsettled(), "the relay knows that they were sent")
    down.tamper("DELETE FROM shield_outbox WHERE causation_id = ANY(:ids)", ids=events)
    return _found(Verdict.NEITHER_EFFECT_NOR_COMPENSATION, [down.group], events)


def on_topic(verdict: Verdict, found: Found) -> Found:
    """Return the findings of a run that also reads the topics of these events."""
    return _found(verdict, [TRANSFERRED], {mismatch.event_id for mismatch in found})


class SavedRows:
    """Settled rows, saved before they are damaged."""

    def __init__(self, banks: Banks, *, since: datetime | None = None) -> None:
        """Damage rows that were sent after a time; None: any rows."""
        self._banks = banks
        up, down = banks.sides
        self._tables = {"sent": (up, OUTBOX), "returned": (up, INBOX), "received": (down, INBOX)}
        self._altered: dict[str, list[UUID]] = {name: [] for name in self._tables}
        for side, table in self._tables.values():
            side.execute(f"CREATE TABLE kept_{table} AS SELECT * FROM {table}")
        given_up = {row.event_id for row in down.rows(_GIVEN_UP)}
        compensated = {row.causation_id for row in up.rows(_COMPENSATED)}
        self._keys = {row.event_id: row.key for row in up.rows(_SENT, since=since)}
        sent = list(self._keys)
        self._matched = [event for event in sent if event not in given_up]
        self._refused = [event for event in sent if event in given_up & compensated]
        struck_out = {row.causation_id for row in down.rows(_COMPENSATED)}
        self._struck = [event for event in self._refused if event in struck_out]
        del self._struck[FOR_AUDITORS:]
        self._refused = [event for event in self._refused if event not in self._struck]

    @property
    def _both(self) -> list[str]:
        group = self._banks.downstream.group
        return [group, auditors_of(group)]

    def forget_by_auditors(self, number: int) -> Found:
        """The auditors lose part of their books, as in a restore.

        A repair restores the events with `--restored`, because they have neither rows nor effects,
        and with `--out-of-order`, because later events of their keys exist.
        """
        down, events = self._banks.downstream, _take(self._matched, number)
        group = auditors_of(down.group)
        down.tamper(f"DELETE FROM shield_inbox {_OF_GROUP}", ids=events, group=group)
        down.execute("DELETE FROM audit WHERE id = ANY(:ids)", ids=events)
        return _found(Verdict.MISSING_DOWNSTREAM, [group], events)

    def forget_upstream(self, number: int) -> Found:
        """Outbox rows vanish."""
        events = _take(self._matched, number)
        self._alter("sent", f"DELETE FROM shield_outbox {_OF_EVENTS}", events)
        return _found(Verdict.UNKNOWN_UPSTREAM, self._both, events)

    def deny(self, number: int) -> Found:
        """Outbox rows falsely state that their events were never sent."""
        events = _take(self._matched, number)
        self._alter("sent", f"UPDATE shield_outbox SET status = 'DISCARDED' {_OF_EVENTS}", events)
        return _found(Verdict.STATUS_DISAGREES, self._both, events)

    def antedate(self, number: int) -> Found:
        """Outbox rows falsely state that events were sent before earlier events on the topic."""
        events = [_take_follower(self._matched, self._keys) for _ in range(number)]
        self._alter(
            "sent",
            "UPDATE shield_outbox SET created_at = created_at - interval '1 hour', "
            f"settled_at = settled_at - interval '1 hour' {_OF_EVENTS}",
            events,
        )
        return _found(Verdict.ORDER_INVERTED, [TRANSFERRED], events)

    def falsify(self, number: int) -> Found:
        """Payloads in the bank's inbox differ from the sent ones."""
        events = _take(self._matched, number)
        self._alter_tills("payload = payload || ' '", events)
        return _found(Verdict.PAYLOAD_DIFFERS, self._both[:1], events)

    def relabel(self, number: int) -> Found:
        """Events in the bank's inbox have another key than the sent ones."""
        events = _take(self._matched, number)
        self._alter_tills("key = key || '?'", events)
        return _found(Verdict.ENVELOPE_DIFFERS, self._both[:1], events)

    def try_too_often(self, number: int) -> Found:
        """The bank gave events up after more attempts than configured."""
        events = _take(self._refused, number)
        self._alter_tills("attempts = 9", events)
        return _found(Verdict.ATTEMPTS_DIFFER, self._both[:1], events)

    def keep_effect(self, number: int) -> Found:
        """Events with a rollback look as if the bank had never given them up."""
        events = _take(self._refused, number)
        self._alter_tills("status = 'PROCESSED'", events)
        # The auditors have removed their entries.
        return _found(Verdict.EFFECT_DESPITE_ROLLBACK, self._both[:1], events)

    def settle_without_compensation(self, number: int) -> Found:
        """Upstream, rollbacks are settled that compensated nothing."""
        up, rollbacks = self._banks.upstream, self._returned(_take(self._refused, number))
        self._alter(
            "returned",
            f"UPDATE shield_inbox SET compensated_id = NULL {_OF_GROUP}",
            rollbacks,
            group=up.group,
        )
        return _found(Verdict.ROLLBACK_NOT_COMPENSATED, [up.group], rollbacks)

    def lose_rollbacks_of_auditors(self, number: int) -> Found:
        """The broker loses rollbacks for the auditors: refused transfers stay in their books.

        A repair publishes the rollbacks again, and the auditors remove the entries.
        """
        down, events = self._banks.downstream, _take(self._struck, number)
        group, rollbacks = auditors_of(down.group), self._returned(events)
        down.tamper(f"DELETE FROM shield_inbox {_OF_GROUP}", ids=rollbacks, group=group)
        down.execute("DELETE FROM audit WHERE entry < 0 AND id = ANY(:ids)", ids=events)
        return _found(Verdict.MISSING_DOWNSTREAM, [group], rollbacks)

    def settle_by_auditors_without_compensation(self, number: int) -> Found:
        """The auditors have settled rollbacks of their entries, and removed nothing."""
        rollbacks = self._returned(_take(self._struck, number))
        group = auditors_of(self._banks.downstream.group)
        statement = f"UPDATE shield_inbox SET compensated_id = NULL {_OF_GROUP}"
        self._alter("received", statement, rollbacks, group=group)
        return _found(Verdict.ROLLBACK_NOT_COMPENSATED, [group], rollbacks)

    def undo(self) -> None:
        """Restore what no repair can fix."""
        for name, (side, table) in self._tables.items():
            ids = self._altered[name]
            side.tamper(f"DELETE FROM {table} {_OF_EVENTS}", ids=ids)
            side.tamper(
                f"INSERT INTO {table} OVERRIDING SYSTEM VALUE "
                f"SELECT * FROM kept_{table} {_OF_EVENTS}",
                ids=ids,
            )

    def _returned(self, events: Sequence[UUID]) -> list[UUID]:
        return [row.event_id for row in self._banks.upstream.rows(_ROLLBACKS, ids=list(events))]

    def _alter_tills(self, change: str, events: Sequence[UUID]) -> None:
        statement = f"UPDATE shield_inbox SET {change} {_OF_GROUP}"
        self._alter("received", statement, events, group=self._banks.downstream.group)

    def _alter(self, name: str, statement: str, events: Sequence[UUID], **more: str) -> None:
        side, _ = self._tables[name]
        side.tamper(statement, ids=list(events), **more)
        self._altered[name] += events


OUTBOX, INBOX = "shield_outbox", "shield_inbox"
_OF_EVENTS = "WHERE event_id = ANY(:ids)"
_OF_GROUP = f"{_OF_EVENTS} AND consumer_group = :group"
_SENT = (
    "SELECT event_id, key FROM shield_outbox WHERE tx_kind = 'COMMIT' AND status = 'PROCESSED' "
    "AND (CAST(:since AS timestamptz) IS NULL OR settled_at > :since) ORDER BY seq"
)
_GIVEN_UP = "SELECT event_id FROM shield_inbox WHERE status = 'MAX_RECONSUMED'"
_COMPENSATED = "SELECT causation_id FROM shield_inbox WHERE compensated_id IS NOT NULL"
_ROLLBACKS = "SELECT event_id FROM shield_inbox WHERE causation_id = ANY(:ids)"


def _take(events: list[UUID], number: int) -> list[UUID]:
    """Take events out of the list: each event gets one kind of damage."""
    taken, events[:] = events[:number], events[number:]
    assert len(taken) == number, "there are too few events to do harm to"
    return taken


def _take_follower(events: list[UUID], keys: Mapping[UUID, str]) -> UUID:
    """Take an event and its predecessor of the same key, which is kept; return the event."""
    ahead: dict[str, UUID] = {}
    for event in events:
        first = ahead.setdefault(keys[event], event)
        if first != event:
            events.remove(first)
            events.remove(event)
            return event
    raise AssertionError("no key has two events to do harm to")


def _found(verdict: Verdict, groups: Iterable[str], events: Iterable[UUID]) -> Found:
    groups = list(groups)
    return {Mismatch(verdict, group, event) for event in events for group in groups}


def _transfers(banks: Banks) -> list[UUID]:
    rows = banks.upstream.rows("SELECT event_id FROM shield_outbox ORDER BY seq")
    return [row.event_id for row in rows]
