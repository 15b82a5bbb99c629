"""F29 to F31, F36, F43a, F43b: faults of rollbacks."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import partial
from uuid import UUID

from tests.verification.faults.bank import auditors_of, by_hand
from tests.verification.faults.banks import Banks
from tests.verification.faults.failpoints import Failpoint
from tests.verification.faults.foreign_client import Echo, ForeignClient
from tests.verification.faults.matrix import Fault
from tests.verification.faults.scenarios.members import (
    await_deaths,
    await_rollbacks,
    launch_dying,
    stop_consumers,
)
from tests.verification.faults.workers import Worker

PLACES = (
    ("give-up", "before"),
    ("rollback", "before"),
    ("rollback", "after"),
    ("give-up", "after"),
)
ROUNDS = 3
KEPT_S = 5
FOR_A_PERSON = "late rollbacks wait for an operator"
PURGED = {"SHIELDTX_RETENTION_OUTBOX": "0.001", "SHIELDTX_RETENTION_INBOX": "0.001"}


def killed_while_giving_up(banks: Banks) -> None:
    """Consumers die between the last attempt and the ROLLBACK event, and just after it."""
    banks.open(but="downstream consume")
    dying = launch_dying(banks.downstream, PLACES)
    banks.write(24, refused=1.0, ways=("slowly",))
    await_deaths(banks, dying)
    banks.downstream.consume()
    banks.drain()
    rollbacks = Counter(
        row.causation_id
        for row in banks.downstream.rows(
            "SELECT causation_id FROM shield_outbox WHERE tx_kind = 'ROLLBACK'"
        )
    )
    refused = {row.id for row in banks.upstream.rows("SELECT id FROM transfer")}
    banks.expect(set(rollbacks) == refused, "every refused transfer has a rollback")
    banks.expect(set(rollbacks.values()) == {1}, f"more than one rollback: {rollbacks}")


def success_races_rollback(banks: Banks) -> None:
    """Auditors succeed where the bank refuses; rollbacks arrive twice, too early and too late."""
    banks.open()
    auditors = _open_auditors(banks)
    with Echo(banks.kafka.bootstrap, banks.topics[1]) as echo:
        banks.write(100, refused=0.5, ways=("at once", "slowly", "by all"))
        banks.drain()
        written = banks.downstream.one("SELECT count(*) FROM shield_outbox")
        banks.until(lambda: len(echo.copies) >= written, "every rollback comes twice")
    _await_auditors(banks)
    auditors.terminate()
    _let_rollbacks_overtake(banks)
    _let_rollbacks_come_late(banks)
    _expect_books(banks)


def beside_its_event(banks: Banks) -> None:
    """An auditor dies with transfers; another reads the rollbacks while its leases last."""
    side = banks.downstream
    banks.open()
    banks.write(20, refused=1.0, ways=("at once",))
    banks.drain()
    point = Failpoint(step="effect", when="before", action="exit")
    leased = {"BANK_HANDLER_LEASE": "15", **side.broken_at(point)}
    dying = side.launch("consume", auditors_of(side.group), **leased)
    await_deaths(banks, [dying])
    auditors = _open_auditors(banks)
    _await_auditors(banks)
    auditors.terminate()
    _expect_books(banks)


def both_topics_at_once(banks: Banks) -> None:
    """Two auditors of a group find transfers and their rollbacks waiting on both topics."""
    beside_its_event(banks)
    for _ in range(ROUNDS):
        banks.write(60, refused=0.5)
        banks.drain()
        pair = [
            banks.downstream.launch("consume", auditors_of(banks.downstream.group))
            for _ in range(2)
        ]
        for auditors in pair:
            auditors.await_ready()
        _await_auditors(banks)
        for auditors in pair:
            auditors.terminate()
    _expect_books(banks)


def after_the_purge(banks: Banks) -> None:
    """The auditors' inbox is purged before the bank refuses transfers that the auditors entered."""
    down = banks.downstream
    short = {"SHIELDTX_RETENTION_INBOX": str(KEPT_S), "SHIELDTX_RETENTION_OUTBOX": str(KEPT_S)}
    banks.open(but="downstream consume")
    auditors = _open_auditors(banks, **short)
    banks.write(20, refused=0.5, ways=("at once",))
    entered = "SELECT count(*) FROM audit"
    banks.until(lambda: down.one(entered) == 20, "the auditors have entered all", 60)

    def is_empty() -> bool:
        down.call("purge", by_hand.purge, **short).finish()
        return not down.inbox()

    banks.until(is_empty, "their inbox is purged", 60)
    down.consume()
    banks.drain()
    _await_auditors(banks)
    refused = down.one(_ROLLED_BACK)
    late = down.one("SELECT count(*) FROM shield_inbox WHERE status = 'DEAD'")
    banks.expect(refused and late == refused, f"{FOR_A_PERSON}: {late} of {refused}")
    auditors.terminate()


def _open_auditors(banks: Banks, **environment: str) -> Worker:
    return banks.downstream.launch(
        "consume", auditors_of(banks.downstream.group), **environment
    ).await_ready()


def _await_auditors(banks: Banks) -> None:
    """Wait until the auditors have processed all records on the topics."""
    foreign_client, group = (
        ForeignClient(banks.kafka.bootstrap),
        auditors_of(banks.downstream.group),
    )
    for topic in banks.topics:
        read = partial(foreign_client.has_read, group, topic, foreign_client.ends(topic))
        banks.until(read, "the auditors have read everything", 60)
    banks.drain()


def _let_rollbacks_overtake(banks: Banks) -> None:
    """The auditors get the rollbacks of some transfers, and only then the transfers."""
    side, commits = banks.downstream, banks.topics[0]
    group = auditors_of(side.group)
    foreign_client = ForeignClient(banks.kafka.bootstrap)
    before, fenced, refused = (
        foreign_client.ends(commits),
        side.one(_FENCED),
        side.one(_ROLLED_BACK),
    )
    banks.write(40, refused=0.5)
    banks.drain()
    refused = side.one(_ROLLED_BACK) - refused
    banks.expect(refused, "no transfer was refused")
    foreign_client.move(group, commits, foreign_client.ends(commits))
    auditors = _open_auditors(banks)
    audited = (
        "SELECT count(DISTINCT causation_id) FROM shield_inbox WHERE consumer_group = :group "
        "AND tx_kind = 'ROLLBACK' AND settled_at IS NOT NULL"
    )
    banks.until(lambda: side.one(audited, group=group) == side.one(_ROLLED_BACK), "they know all")
    banks.expect(side.one(_FENCED) == fenced + refused, "each leaves a tombstone")
    auditors.terminate()
    foreign_client.move(group, commits, before)
    _open_auditors(banks)
    _await_auditors(banks)
    banks.expect(side.one(_FENCED) == fenced + refused, "a tombstone gave way")


_ROLLED_BACK = "SELECT count(DISTINCT causation_id) FROM shield_outbox"
_FENCED = "SELECT count(*) FROM shield_inbox WHERE status = 'FENCED'"


def _let_rollbacks_come_late(banks: Banks) -> None:
    """All rollbacks arrive again after the upstream bank has purged their rows."""
    up = banks.upstream
    _purge(banks)
    banks.expect(not up.outbox() and not up.inbox(), "the upstream bank has forgotten everything")
    refunds = up.one("SELECT count(*) FROM refund")
    foreign_client = ForeignClient(banks.kafka.bootstrap)
    late = {record.id: record for record in foreign_client.read(banks.topics[1])}
    foreign_client.put(*late.values())
    dead = "SELECT count(*) FROM shield_inbox WHERE status = 'DEAD' AND last_error LIKE '%purged%'"
    banks.until(lambda: up.one(dead) == len(late), "each waits for an operator")
    up.call("replay", by_hand.replay_all).finish()
    banks.until(lambda: up.one(dead) == len(late), "each waits once more")
    banks.expect(up.one("SELECT count(*) FROM refund") == refunds > 0, "nothing is refunded twice")


def _expect_books(banks: Banks) -> None:
    """The auditors' books contain the credited transfers, and nothing else."""
    books: dict[UUID, list[int]] = defaultdict(list)
    for row in banks.downstream.rows("SELECT id, entry FROM audit ORDER BY n"):
        books[row.id].append(row.entry)
    credited = {row.id for row in banks.downstream.rows("SELECT id FROM credit")}
    audited = {transfer for transfer, entries in books.items() if entries == [1]}
    struck_out = {transfer for transfer, entries in books.items() if entries == [1, -1]}
    banks.expect(audited == credited, f"the books differ in {len(audited ^ credited)} transfers")
    banks.expect(struck_out, "nothing was struck out of the books")
    odd = {t: entries for t, entries in books.items() if t not in audited | struck_out}
    banks.expect(not odd, f"odd entries: {list(odd.items())[:3]}")


def compensation_that_fails_for_ever(banks: Banks) -> None:
    """Refunds are DEAD; operators replay them: without success, after the repair, and twice."""
    up = banks.upstream
    banks.open()
    banks.write(60, refused=0.3, undo="never")
    banks.drain()
    dead = _dead(banks)
    banks.expect(dead, "no compensation failed")
    listing = up.launch("dead", "list")
    listing.finish()
    unseen = [str(event) for event in dead if str(event) not in listing.log.read_text()]
    banks.expect(not unseen, f"dead, and not listed: {unseen[:3]}")
    _replay(banks)
    banks.drain()
    banks.expect(_dead(banks) == dead, "refunds that fail are DEAD again")
    stop_consumers(up)
    up.consume(BANK_REPAIRED="1")
    _replay(banks, operators=2)
    refunded = "SELECT count(*) FROM refund"
    banks.until(lambda: up.one(refunded) == len(dead), "all is refunded")
    foreign_client = ForeignClient(banks.kafka.bootstrap)
    foreign_client.put(*foreign_client.read(banks.topics[1]))
    ends = foreign_client.ends(banks.topics[1])
    banks.until(lambda: foreign_client.has_read(up.group, banks.topics[1], ends), "copies are read")
    banks.expect(not _dead(banks), "nothing is DEAD any more")


def purged_beside_rollbacks(banks: Banks) -> None:
    """All purgeable rows are purged, while rollbacks are retried, are DEAD, and are replayed."""
    up = banks.upstream
    banks.open(but="upstream consume")
    banks.write(60, refused=0.4, undo="never")
    await_rollbacks(banks)
    rollbacks = banks.downstream.rows("SELECT causation_id FROM shield_outbox")
    expected = {row.causation_id for row in rollbacks}
    banks.expect(expected, "no transfer was refused")
    up.consume()
    banks.until(lambda: sum(up.inbox().values()) == len(expected), "all rollbacks have arrived")
    while len(_dead(banks)) < len(expected):
        _purge(banks)
    banks.drain()
    _purge(banks)
    kept = {row.event_id for row in up.rows("SELECT event_id FROM shield_outbox")}
    banks.expect(
        kept == expected, f"{len(kept)} transfers are kept, {len(expected)} have a rollback"
    )
    stop_consumers(up)
    up.consume(BANK_REPAIRED="1")
    _replay(banks)
    refunded = "SELECT count(*) FROM refund"
    banks.until(lambda: up.one(refunded) == len(expected), "all is refunded")
    _purge(banks)
    banks.expect(not up.outbox() and not up.inbox(), "nothing is kept for a rollback any more")


def _purge(banks: Banks) -> None:
    banks.upstream.call("purge", by_hand.purge, **PURGED).finish()


def _dead(banks: Banks) -> set[UUID]:
    dead = banks.upstream.rows("SELECT event_id FROM shield_inbox WHERE status = 'DEAD'")
    return {row.event_id for row in dead}


def _replay(banks: Banks, *, operators: int = 1) -> None:
    """Let operators replay everything concurrently; at least one replay must succeed."""
    replays = [banks.upstream.call("replay", by_hand.replay_all) for _ in range(operators)]
    for replay in replays:
        replay.join(60)
    banks.expect(0 in [replay.exit_status for replay in replays], "no replay succeeded")


FAULTS = (
    Fault(
        id="F29",
        name="consumer killed between the last attempt and the rollback",
        run=killed_while_giving_up,
    ),
    Fault(
        id="F30",
        name="rollbacks early, late, twice, against success",
        run=success_races_rollback,
    ),
    Fault(
        id="F31",
        name="a compensation that fails for ever",
        run=compensation_that_fails_for_ever,
    ),
    Fault(
        id="F36",
        name="two workers, both topics at once",
        run=both_topics_at_once,
    ),
    Fault(
        id="F43a",
        name="a purge during rollbacks that are tried again, dead, replayed",
        run=purged_beside_rollbacks,
    ),
    Fault(
        id="F43b",
        name="rollbacks after the purge of their events in another group",
        run=after_the_purge,
    ),
)
