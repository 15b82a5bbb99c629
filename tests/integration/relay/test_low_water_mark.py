"""Where claims start: late, so that dead rows cost nothing, and never after an open row."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest
from sqlalchemy import Connection, Engine, create_engine, text

from shieldtx.domain.events import Envelope, new_event_id
from shieldtx.domain.sampler import SHARE
from shieldtx.ports.outbox import Posting
from shieldtx.ports.relay import Claim, Retry, Settlement
from shieldtx.store import low_water_mark
from shieldtx.store.blocked import BlockedRows
from shieldtx.store.low_water_mark import FULL_SCAN_INTERVAL_S, SETTLING_S, LowWaterMark
from shieldtx.store.outbox_writer import SqlOutboxWriter
from shieldtx.store.relay_store import SqlRelayStore
from shieldtx.store.shard_leases import SqlLeaseStore
from shieldtx.store.tables import tables

SHARDS = 4
HOUR = timedelta(hours=1)
NOT_LONG = timedelta(0)


@dataclass
class Line:
    """An outbox, one relay's store of it, and writers whose transactions a test ends."""

    engine: Engine
    now: float = 1_000.0
    commits: dict[UUID, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tables = tables()
        self.writer = SqlOutboxWriter(self.tables, shards=SHARDS)
        self.leases = SqlLeaseStore(self.engine, self.tables)
        self.store = SqlRelayStore(self.engine, self.tables, clock=lambda: self.now)
        self.leases.renew(relay="r", lease=HOUR)

    def begin(self, *keys: str) -> tuple[Connection, list[UUID]]:
        """Write events in a transaction that stays open."""
        connection = self.engine.connect()
        written = [_envelope(key) for key in keys]
        self.writer.insert(connection, [Posting(envelope=e) for e in written])
        return connection, [e.id for e in written]

    def write(self, *keys: str) -> list[UUID]:
        connection, ids = self.begin(*keys)
        connection.commit()
        connection.close()
        return ids

    def claim(self, limit: int = 100) -> Claim:
        return self.store.claim(relay="r", limit=limit)

    def take(self, limit: int = 100) -> list[UUID]:
        """Claim, and settle all rows as sent."""
        claim = self.claim(limit)
        ids = [claimed.envelope.id for claimed in claim.events]
        if ids:
            assert self.store.settle(claim.token, Settlement(processed=ids)) == len(ids)
        return ids

    def let_the_mark_follow(self) -> int:
        """Send enough rows that the mark moves, and return the mark."""
        for _ in range(4):
            self.write(*"xyz")
            self.take()
            self.now += SETTLING_S
        return self.mark

    @property
    def mark(self) -> int:
        return self.store._low_water.start()


def _envelope(key: str) -> Envelope:
    return Envelope(
        id=new_event_id(),
        type="things.happened",
        source="things",
        topic="things",
        payload="{}",
        time=datetime.now(UTC),
        key=key,
    )


@pytest.fixture
def line(undisturbed_url: str) -> Iterator[Line]:
    # The mark waits for every transaction of its server.
    engine = create_engine(undisturbed_url, pool_size=20)
    yield Line(engine)
    engine.dispose()


def test_claims_start_where_earlier_ones_ended(line: Line) -> None:
    assert line.mark == 0
    mark = line.let_the_mark_follow()
    [first] = line.write("k")
    [seq] = _rows(line, "SELECT seq FROM shield_outbox WHERE event_id = :id", id=first)
    assert 0 < mark < seq
    assert line.take() == [first]


def test_long_transaction_keeps_the_mark_before_its_events(
    line: Line,
) -> None:
    slow, [first] = line.begin("k")
    line.let_the_mark_follow()
    slow.commit()
    slow.close()
    [second] = line.write("k")
    assert line.take() == [first, second]


def test_reader_with_an_old_snapshot_does_not_stop_the_mark(line: Line) -> None:
    with line.engine.connect().execution_options(isolation_level="REPEATABLE READ") as reader:
        reader.execute(text("SELECT count(*) FROM shield_outbox"))
        assert line.let_the_mark_follow() > 0


@pytest.mark.parametrize("way", ["unsent", "unconfirmed"])
def test_released_rows_precede_later_rows(line: Line, way: str) -> None:
    line.let_the_mark_follow()
    [first] = line.write("k")
    claim = line.claim()
    line.write(*"xyz")
    line.now += SETTLING_S
    line.take()
    line.write(*"xyz")
    line.now += SETTLING_S
    line.take()
    line.store.settle(claim.token, Settlement(**{way: [first]}))
    [second] = line.write("k")
    assert line.take() == [first, second]


@pytest.mark.parametrize("pile", ["small", "large"])
def test_rows_blocked_by_a_retry_are_sent_before_later_rows(
    line: Line, monkeypatch: pytest.MonkeyPatch, pile: str
) -> None:
    if pile == "large":
        # Rows of blocked keys are still in the main queue, so they do not return to it either.
        monkeypatch.setattr(BlockedRows, "run_if_due", lambda *_, **__: False)
    line.let_the_mark_follow()
    [first, second] = line.write("k", "k")
    claim = line.claim(limit=1)
    retry = Retry(event_id=first, delay=timedelta(0), reason="refused")
    line.store.settle(claim.token, Settlement(retries=[retry]))
    again = line.claim(limit=1)
    assert [c.envelope.id for c in again.events] == [first]
    # While the row is in progress again, its key is blocked, and claims pass its other rows.
    line.let_the_mark_follow()
    # A full scan, so that no full scan is due on its own.
    line.write("x")
    line.take()
    line.store.settle(again.token, Settlement(processed=[first]))
    [third] = line.write("k")
    assert line.take() == [second, third]


@pytest.mark.parametrize("limit", [1, 100])
def test_shard_of_another_relay_is_scanned_from_the_beginning(line: Line, limit: int) -> None:
    line.let_the_mark_follow()
    line.leases.leave(relay="r")
    line.leases.renew(relay="other", lease=HOUR)
    written = line.write("k", "l", "m")
    line.leases.leave(relay="other")
    for number in range(4):
        # No relay owns the shards, so an unchecked mark of this relay would pass the rows.
        line.write(f"n{number}")
    line.leases.renew(relay="r", lease=HOUR)
    assert line.mark > 0
    line.store._low_water._seq, line.store._low_water._candidate = 10**6, None
    taken = [event_id for _ in written for event_id in line.take(limit)]
    assert taken[:3] == written


def test_an_event_requeued_by_an_operator_is_found_soon(line: Line) -> None:
    line.let_the_mark_follow()
    [failed] = line.write("k")
    claim = line.claim()
    line.store.fail(claim.token, failed, reason="rejected", local_rollback=None)
    line.let_the_mark_follow()
    with line.engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE shield_outbox SET status = 'INIT', settled_at = NULL WHERE event_id = :id"
            ),
            {"id": failed},
        )
    line.now += FULL_SCAN_INTERVAL_S
    assert line.take() == [failed]


def test_event_requeued_by_an_operator_is_found_by_an_idle_relay(
    line: Line,
) -> None:
    line.let_the_mark_follow()
    [failed] = line.write("k")
    line.store.fail(line.claim().token, failed, reason="rejected", local_rollback=None)
    line.let_the_mark_follow()
    line.take()
    line.write("other")
    line.take()
    assert line.mark > 0
    assert line.take() == []
    with line.engine.begin() as connection:
        connection.execute(
            text("UPDATE shield_outbox SET status = 'INIT', settled_at = NULL WHERE event_id = :i"),
            {"i": failed},
        )
    assert line.take() == [failed]


def test_claim_limited_by_bytes_leaves_no_row_below_the_mark(
    line: Line,
) -> None:
    line.store = SqlRelayStore(
        line.engine, line.tables, clock=lambda: line.now, batch_bytes=len("{}")
    )
    slow, late = line.begin("k", "l", "k", "l")
    line.write("x")
    line.take()
    slow.commit()
    slow.close()
    line.now += SETTLING_S
    assert line.take() == late[:1]
    line.now += SETTLING_S
    last = line.write("k", "l")
    taken = [line.take() for _ in late + last]
    assert [event_id for ids in taken for event_id in ids] == late[1:] + last


@pytest.mark.parametrize(
    ("waited", "oldest_running", "last", "full", "follows"),
    [
        pytest.param(SETTLING_S, 7, 20, False, True, id="all was seen"),
        pytest.param(SETTLING_S, 7, 21, True, True, id="all below was seen"),
        pytest.param(SETTLING_S, 7, 20, True, False, id="rows may be left"),
        pytest.param(SETTLING_S, 6, 20, False, False, id="a transaction runs"),
        pytest.param(SETTLING_S / 2, 7, 20, False, False, id="a number may be drawn"),
    ],
)
def test_mark_follows_when_no_row_can_appear_below_it(
    waited: float, oldest_running: int, last: int, *, full: bool, follows: bool
) -> None:
    now = 100.0
    mark = LowWaterMark(lambda: now)

    def claimed(oldest_running: int, last: int, *, full: bool) -> int:
        seen = low_water_mark.ClaimSnapshot(
            shards=1,
            has_blocked_keys=False,
            oldest_running=oldest_running,
            next_to_run=7,
            chosen=1,
        )
        mark.record(0, seen, last, full=full, took=0.0)
        return mark.start()

    assert claimed(5, 20, full=False) == 0
    now += waited
    assert claimed(oldest_running, last, full=full) == (20 if follows else 0)


def test_slow_full_scan_runs_rarely() -> None:
    now = 100.0
    mark = LowWaterMark(lambda: now)
    snapshot = low_water_mark.ClaimSnapshot(
        shards=1, has_blocked_keys=False, oldest_running=5, next_to_run=5, chosen=1
    )
    for last in (10, 20, 30):
        mark.record(mark.start(), snapshot, last, full=True, took=1.0)
        now += SETTLING_S
    assert mark.start() > 0
    now += FULL_SCAN_INTERVAL_S
    assert mark.start() > 0
    now += 20.0
    assert mark.start() == 0


def test_empty_claims_do_not_cause_more_full_scans() -> None:
    now = 100.0
    mark = LowWaterMark(lambda: now)
    spent = {False: 0.0, True: 0.0}
    # As with a long-lived snapshot: a full scan takes 1 s, and every other claim is empty.
    for turn in range(20_000):
        start = mark.start()
        took = 0.01 if start else 1.0
        now += took
        seen = low_water_mark.ClaimSnapshot(
            shards=1, has_blocked_keys=False, oldest_running=turn, next_to_run=turn, chosen=0
        )
        mark.record(start, None if turn % 2 else seen, turn, full=False, took=took)
        if turn > 100:  # the mark exists by now
            spent[start == 0] += took
    assert 0 < spent[True] < spent[False] / SHARE + 1.0


def test_quick_full_scan_follows_an_empty_claim() -> None:
    now = 100.0
    mark = LowWaterMark(lambda: now)
    snapshot = low_water_mark.ClaimSnapshot(
        shards=1, has_blocked_keys=False, oldest_running=5, next_to_run=5, chosen=0
    )
    for last in (10, 20, 30):
        mark.record(mark.start(), snapshot, last, full=True, took=0.001)
        now += SETTLING_S
    assert mark.start() > 0
    mark.record(mark.start(), None, 0, full=False, took=0.001)
    assert mark.start() == 0


@pytest.mark.parametrize("seed", range(12))
def test_no_event_overtakes_another_of_its_key_in_random_plays(line: Line, seed: int) -> None:
    assert Play(line, seed).overtaken() == []


def _careless(self: LowWaterMark, start: int, snapshot: Any, last: int, **_: Any) -> None:
    self._shards = snapshot.shards if snapshot else self._shards
    self._full_scans.record(took=0.0)
    self._seq = max(self._seq, last)


def test_mark_that_ignores_running_transactions_is_detected(line: Line) -> None:
    with patch.object(LowWaterMark, "record", _careless):
        assert any(Play(line, seed).overtaken() for seed in range(12))


class Play:
    """Writes, claims and settles at random, and records the events written and sent of each key.

    One transaction at a time writes a key, as in an application that locks its rows.
    """

    def __init__(self, line: Line, seed: int) -> None:
        self._line = line
        self._draw = random.Random(seed)
        self._written: dict[str, list[UUID]] = defaultdict(list)
        self._sent: dict[str, list[UUID]] = defaultdict(list)
        self._open: list[tuple[Connection, list[str], list[UUID]]] = []

    def overtaken(self) -> list[str]:
        """Run all steps, and return the keys of which an event overtook another or was not sent."""
        steps = [self.begin] * 3 + [self.end] * 2 + [self.work] * 4 + [self.wait] * 2
        for _ in range(120):
            self._draw.choice([*steps, self.hand_over])()
        while self._open:
            self.end()
        self._line.now += FULL_SCAN_INTERVAL_S
        while self.work(gently=True):
            self._line.now += SETTLING_S
        return [key for key, written in self._written.items() if self._sent[key] != written]

    def begin(self) -> None:
        busy = {key for _, keys, _ in self._open for key in keys}
        keys = [k for k in "abcd" if k not in busy and self._draw.random() < 0.4]
        if keys and len(self._open) < 3:
            connection, ids = self._line.begin(*keys)
            self._open.append((connection, keys, ids))

    def end(self) -> None:
        if not self._open:
            return
        connection, keys, ids = self._open.pop(self._draw.randrange(len(self._open)))
        if self._draw.random() < 0.8:
            connection.commit()
            for key, event_id in zip(keys, ids, strict=True):
                self._written[key].append(event_id)
        connection.close()

    def work(self, *, gently: bool = False) -> bool:
        """Make two claims; the second is sent only if all of the first was."""
        claim, ahead = self._claim(), self._claim()
        if not self._settle(claim, 1.0 if gently else 0.8):
            self._settle(ahead, 0.0)
        else:
            self._settle(ahead, 1.0 if gently else 0.8)
        return bool(claim.events)

    def _claim(self) -> Claim:
        self._line.now += self._draw.choice([0.0, SETTLING_S])
        return self._line.claim(limit=self._draw.choice([1, 2, 50]))

    def _settle(self, claim: Claim, chance: float) -> bool:
        blocked: set[str | None] = set()
        ends: dict[str, list[Any]] = defaultdict(list)
        for claimed in claim.events:
            key, event_id = claimed.envelope.key, claimed.envelope.id
            if key not in blocked and self._draw.random() < chance:
                self._sent[str(key)].append(event_id)
                ends["processed"].append(event_id)
            elif chance and key not in blocked and self._draw.random() < 0.5:
                ends["retries"].append(Retry(event_id=event_id, delay=NOT_LONG, reason="refused"))
                blocked.add(key)
            else:
                ends["unsent"].append(event_id)
                blocked.add(key)
        if claim.events:
            self._line.store.settle(claim.token, Settlement(**ends))
        return set(ends) <= {"processed"}

    def hand_over(self) -> None:
        self._line.leases.leave(relay="r")
        self._line.leases.renew(relay="r", lease=HOUR)

    def wait(self) -> None:
        self._line.now += self._draw.choice([0.1, SETTLING_S, FULL_SCAN_INTERVAL_S])


def _rows(line: Line, statement: str, **parameters: Any) -> list[Any]:
    with line.engine.connect() as connection:
        return list(connection.execute(text(statement), parameters).scalars())
