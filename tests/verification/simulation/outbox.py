"""The outbox port and the shard leases in memory, like the SQL stores."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import timedelta
from uuid import UUID

from shieldtx.domain.events import Envelope
from shieldtx.domain.states import OUTBOX, OutboxStatus
from shieldtx.errors import LocalRollbackFailed
from shieldtx.outbox.outbox import Outbox
from shieldtx.ports.broker import BATCH_BYTES
from shieldtx.ports.relay import Claim, ClaimedEvent, Settlement, ShardLeases
from tests.verification.simulation.database import Database, OutboxRow, Transaction

_INTO_INIT = OUTBOX.sources_of(OutboxStatus.INIT, among=(OutboxStatus.PROCESSING,))
_INTO_PROCESSED = OUTBOX.sources_of(OutboxStatus.PROCESSED, among=(OutboxStatus.PROCESSING,))
_INTO_FAILED = OUTBOX.sources_of(OutboxStatus.FAILED, among=(OutboxStatus.PROCESSING,))

_NOTHING = Claim(token=UUID(int=0), events=(), lease_left=timedelta(0))

CLOCK_STEP_S = 3600.0
"""How far in the past a takeover ends the leases of a dead relay, as the statements do."""


class MemoryOutboxStore:
    """Claims and settles rows (the port RelayStore); `by` is the process that does so."""

    def __init__(
        self,
        database: Database,
        *,
        by: str = "",
        source: str | None = None,
        batch_bytes: int = BATCH_BYTES,
    ) -> None:
        self._database = database
        self._source = source
        self._batch_bytes = batch_bytes
        self._by = by
        self._turn = 0

    def claim(self, *, relay: str, limit: int) -> Claim:
        """Lease the next due rows of the relay's shards to it."""
        db = self._database
        shards = len(db.shards)
        self._turn = (self._turn + 1) % shards
        mine = [s for s in db.shards if s.owner == relay and s.lease_until > db.now]
        mine.sort(key=lambda s: (s.number + self._turn) % shards)
        chosen = self._choose([s.number for s in mine], limit) if mine else []
        chosen, cut = self._bounded(chosen)
        if not chosen:
            return _NOTHING
        token = db.next_token()
        lease_until = min(s.lease_until for s in mine)
        for row in chosen:
            db.free(row.envelope.id)
        taken = [row for row in chosen if self._is_claimable(row)]
        for row in taken:
            self._take(row, token, lease_until)
        if len(taken) < len(chosen):
            # The claim waited for a row that then settled; it preceded others of its key.
            for row in taken:
                self._unclaim(row)
            return _NOTHING
        chosen.sort(key=_place)
        events = [
            ClaimedEvent(envelope=row.envelope, attempts=row.attempts, unconfirmed=row.unconfirmed)
            for row in chosen
        ]
        left = timedelta(seconds=lease_until - db.now)
        return Claim(token=token, events=events, lease_left=left, cut=cut)

    def withdraw(self, *, relay: str, renamed: str) -> int:
        """Release the leased rows in the relay's shards, and rename the relay."""
        db = self._database
        mine = {shard.number for shard in db.shards if shard.owner == relay}
        rows = [row for row in db.outbox.values() if row.shard in mine and self._is_leased(row)]
        for row in rows:
            db.free(row.envelope.id)
        rows = [row for row in rows if self._is_leased(row)]
        for row in rows:
            self._unclaim(row)
        for shard in db.shards:
            if shard.owner == relay:
                shard.owner = renamed
                shard.epoch += 1
        db.relays.pop(relay, None)
        return len(rows)

    def settle(self, token: UUID, settlement: Settlement) -> int:
        """Record the outcome of a batch: all of it, or nothing and an error."""
        db, s = self._database, settlement
        processed = self._carrying(token, s.processed, _INTO_PROCESSED)
        released = [
            (row, unconfirmed)
            for ids, unconfirmed in ((s.unsent, False), (s.unconfirmed, True))
            for row in self._carrying(token, ids, _INTO_INIT)
        ]
        retried = [
            (row, retry)
            for retry in s.retries
            for row in self._carrying(token, [retry.event_id], _INTO_INIT)
        ]
        for row in processed:
            self._leave(row, OutboxStatus.PROCESSED)
            row.settled_at, row.last_error = db.now, None
        for row, unconfirmed in released:
            self._unclaim(row)
            row.unconfirmed = row.unconfirmed or unconfirmed
            row.last_error = s.reason
        for row, retry in retried:
            self._leave(row, OutboxStatus.INIT)
            self._let_wait(row, retry.delay)
            row.last_error = retry.reason
        return len(processed) + len(released) + len(retried)

    def fail(
        self,
        token: UUID,
        event_id: UUID,
        *,
        reason: str,
        local_rollback: Callable[[Transaction], None] | None,
    ) -> bool:
        """Settle a row as FAILED together with its local rollback."""
        db = self._database
        rows = self._carrying(token, [event_id], _INTO_FAILED)
        if not rows:
            return False
        with db.transaction() as transaction:
            transaction.lock(event_id)
            locked_at = db.now
            transaction.write(lambda: self._set_failed(rows[0], reason, locked_at))
            if local_rollback is not None:
                try:
                    local_rollback(transaction)
                    transaction.flush()
                except Exception as error:
                    raise LocalRollbackFailed(
                        f"local rollback failed: {type(error).__name__}: {error}"
                    ) from error
        return True

    def _choose(self, shards: Sequence[int], limit: int) -> list[OutboxRow]:
        """Pick from the retried rows first, then from the others; a quarter from each shard."""
        db = self._database
        quota = max(1, limit // 4)
        rows = [
            row
            for row in db.outbox.values()
            if row.settled_at is None and row.shard in shards and self._is_of_its_source(row)
        ]
        if not rows:
            return []
        rows.sort(key=lambda row: row.seq)
        held = self._blocked(rows)
        ready = [row for row in rows if self._is_claimable(row) and row.envelope.id not in held]
        aside = sorted(
            (
                row
                for row in ready
                if row.waiting and row.due_at <= db.now and not db.is_passed_over(row.envelope.id)
            ),
            key=lambda row: row.due_at,
        )
        line = [row for row in ready if not row.waiting]
        return [
            row
            for part in (aside, line)
            for shard in shards
            for row in [row for row in part if row.shard == shard][:quota]
        ][:limit]

    def _is_of_its_source(self, row: OutboxRow) -> bool:
        return self._source in {None, row.envelope.source}

    def _bounded(self, rows: Sequence[OutboxRow]) -> tuple[list[OutboxRow], bool]:
        """Return the rows up to the one that reaches the bytes of a batch, and whether one does."""
        taken, size = [], 0
        for row in rows:
            if size >= self._batch_bytes:
                break
            taken.append(row)
            size += len(row.envelope.payload)
        return taken, size >= self._batch_bytes

    def _blocked(self, rows: Sequence[OutboxRow]) -> Collection[UUID]:
        """Find the rows whose key waits for a retry; `rows` are in the order of writing."""
        held: set[UUID] = set()
        keys: set[tuple[str, str]] = set()
        for row in rows:
            if row.envelope.key is None:
                continue
            key = (row.envelope.source, row.envelope.key)
            if key in keys:
                held.add(row.envelope.id)
            if row.waiting and row.holds_key:
                keys.add(key)
        return held

    def _is_claimable(self, row: OutboxRow) -> bool:
        return row.status is OutboxStatus.INIT or (
            row.status is OutboxStatus.PROCESSING
            and row.lease_until is not None
            and row.lease_until <= self._database.now
        )

    def _is_leased(self, row: OutboxRow) -> bool:
        return _lasts(row, self._database)

    def _take(self, row: OutboxRow, token: UUID, lease_until: float) -> None:
        # The owner until the lease expired may have sent it.
        row.unconfirmed = row.unconfirmed or row.status is OutboxStatus.PROCESSING
        self._database.move_outbox(row, OutboxStatus.PROCESSING, self._by)
        row.attempts += 1
        row.token = token
        row.lease_until = lease_until

    def _carrying(
        self, token: UUID, ids: Sequence[UUID], sources: Collection[OutboxStatus]
    ) -> list[OutboxRow]:
        """Find the rows that still have the token, even if they are free."""
        db = self._database

        def carry_it() -> list[OutboxRow]:
            rows = [db.outbox[event_id] for event_id in ids if event_id in db.outbox]
            return [row for row in rows if row.token == token and row.status in sources]

        for row in carry_it():
            db.free(row.envelope.id)
        return carry_it()

    def _leave(self, row: OutboxRow, target: OutboxStatus) -> None:
        self._database.move_outbox(row, target, self._by)
        row.token = row.lease_until = None

    def _unclaim(self, row: OutboxRow) -> None:
        self._leave(row, OutboxStatus.INIT)
        row.attempts -= 1

    def _let_wait(self, row: OutboxRow, delay: timedelta) -> None:
        row.due_at = self._database.now + delay.total_seconds()
        row.holds_key = row.holds_key or not row.waiting
        row.waiting = True

    def _set_failed(self, row: OutboxRow, reason: str, locked_at: float) -> None:
        self._leave(row, OutboxStatus.FAILED)
        row.settled_at, row.last_error = locked_at, reason


def _place(row: OutboxRow) -> tuple[bool, float, int]:
    """Return the sort key of sending: delayed rows by their time, then the others by `seq`."""
    delayed = row.waiting and not row.holds_key
    return (not delayed, row.due_at if delayed else 0.0, row.seq)


def _lasts(row: OutboxRow, db: Database) -> bool:
    return (
        row.settled_at is None
        and row.status in _INTO_INIT
        and row.lease_until is not None
        and row.lease_until > db.now
    )


class MemoryLeaseStore:
    """Shares the shards out among the active relays (the port LeaseStore)."""

    def __init__(
        self, database: Database, *, has_died: Callable[[str], bool] = lambda _: False
    ) -> None:
        self._database = database
        self._has_died = has_died

    def renew(self, *, relay: str, lease: timedelta) -> ShardLeases:
        """Announce the relay, extend its leases and take free shards up to its fair share."""
        db = self._database
        self._release_dead(relay)
        until = db.now + lease.total_seconds()
        for name in [name for name, alive_until in db.relays.items() if alive_until <= db.now]:
            del db.relays[name]
        db.relays[relay] = until
        fair_share = -(-len(db.shards) // len(db.relays))
        held = [s for s in db.shards if s.owner == relay and s.lease_until > db.now]
        for shard in held:
            shard.lease_until = until
        free = [s for s in db.shards if s.owner is None or s.lease_until <= db.now]
        for shard in free[: max(0, fair_share - len(held))]:
            shard.owner, shard.lease_until = relay, until
            shard.epoch += 1
            held.append(shard)
        numbers = sorted(shard.number for shard in held)
        return ShardLeases(
            shards=frozenset(numbers),
            relays=len(db.relays),
            surplus=frozenset(numbers[fair_share:]),
        )

    def _release_dead(self, relay: str) -> None:
        """Release the shards and rows of relays whose process has died."""
        db = self._database
        owners = {s.owner for s in db.shards if s.owner is not None and s.lease_until > db.now}
        for name in sorted({*owners, *db.relays} - {relay}):
            if not self._is_dead(name):
                continue
            numbers = frozenset(shard.number for shard in db.shards if shard.owner == name)
            rows = [row for row in db.outbox.values() if row.shard in numbers and _lasts(row, db)]
            if any(db.is_passed_over(row.envelope.id) for row in rows):
                continue
            for row in rows:
                row.lease_until = db.now - CLOCK_STEP_S
            self.leave(relay=name)

    def _is_dead(self, relay: str) -> bool:
        return self._has_died(relay)

    def release(self, *, relay: str, shards: frozenset[int]) -> None:
        """Release these shards for the other relays."""
        for shard in self._database.shards:
            if shard.owner == relay and shard.number in shards:
                shard.owner, shard.lease_until = None, 0.0

    def leave(self, *, relay: str) -> None:
        """Release every shard of the relay and forget it."""
        self.release(relay=relay, shards=frozenset(s.number for s in self._database.shards))
        self._database.relays.pop(relay, None)


class MemoryOutbox(Outbox):
    """The write side over a transaction in memory; ids come from the simulation."""

    def __init__(self, *, source: str, new_id: Callable[[], UUID], **parts: object) -> None:
        super().__init__(source=source, **parts)  # type: ignore[arg-type]
        self._new_id = new_id

    def rollback_of(self, original: Envelope, *, reason: str) -> Envelope:
        """Make the rollback event of `original`, with an id that is the same in each replay."""
        return super().rollback_of(original, reason=reason).evolve(id=self._new_id())

    def add_envelope(self, session: Transaction, envelope: Envelope) -> None:  # type: ignore[override]
        """Add an envelope to the transaction."""
        session.database.insert_outbox(session, envelope)

    def insert_envelopes(  # type: ignore[override]
        self, session: Transaction, envelopes: Iterable[Envelope]
    ) -> None:
        """Add envelopes to the transaction."""
        for envelope in envelopes:
            self.add_envelope(session, envelope)
