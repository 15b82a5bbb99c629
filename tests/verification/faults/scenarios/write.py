"""F1 to F3, F7 and F8: faults of clients, before and during their commit."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

from sqlalchemy import make_url

from tests.verification.faults.bank import bad_events, conflicts, long_transactions
from tests.verification.faults.banks import Banks
from tests.verification.faults.failpoints import Failpoint
from tests.verification.faults.journal import Operations
from tests.verification.faults.matrix import Fault
from tests.verification.faults.proxy import FaultProxy, postgres
from tests.verification.faults.side import Side
from tests.verification.faults.workers import Worker

ENDS_OF_CLIENTS = (
    ("commit", "before"),  # the business rows are written
    ("write", "after"),  # the event, too
    ("commit", "after"),  # committed, and the journal does not know
)

LOST = 6
"""Number of lost COMMITs, or of lost answers to them."""

BULKS, TRANSFERS_IN_BULK = 8, 125
ALL_WITHIN_S = 180.0


def killed_before_commit(banks: Banks) -> None:
    """The clients' process dies at each step around its COMMIT, and at random."""
    banks.open()
    load = banks.begin_writing(60)
    for step, when in ENDS_OF_CLIENTS:
        banks.upstream.mark.unlink(missing_ok=True)
        point = Failpoint(step=step, when=when, action="exit", nth=3)
        doomed = banks.begin_writing(10, clients=1, environment=banks.upstream.broken_at(point))
        banks.struck(banks.upstream)
        doomed.join()
    load.finish()
    # In the order of their deaths, since their ids contain the time.
    unanswered = sorted(Operations.read(banks.journal).of("info"))
    committed = [_committed(banks, {operation}) for operation in unanswered]
    banks.expect(committed == [0, 0, 1], "of the clients killed only the last had committed")
    anywhere = banks.begin_writing(1000)
    banks.until(lambda: _ok(banks) > 100, "clients are running")
    anywhere.kill()
    banks.expect(_ok(banks) < 1000, "the clients were killed in the middle of it")


def commit_lost(banks: Banks) -> None:
    """Answers to COMMIT are lost on the network, and then COMMITs themselves."""
    banks.open()
    with FaultProxy(banks.postgres.port, postgres) as proxy:
        url = make_url(banks.upstream.url).set(port=proxy.port)
        for lose, committed in ((proxy.lose_answer, LOST), (proxy.lose_request, 0)):
            before = Operations.read(banks.journal).of("info")
            with lose("COMMIT", nth=20, times=LOST) as loss:
                banks.write(80, url=url.render_as_string(hide_password=False))
                banks.expect(loss.struck == LOST, f"COMMITs are lost: {loss.struck}")
            unknown = Operations.read(banks.journal).of("info") - before
            banks.expect(len(unknown) == LOST, "clients do not know how their transactions ended")
            banks.expect(
                _committed(banks, unknown) == committed, f"{committed} of them are committed"
            )


def rolled_back(banks: Banks) -> None:
    """Exceptions, savepoints, a deadlock and a serialization failure end transactions."""
    banks.open()
    load = banks.begin_writing(60)
    committed_by_load = 60
    for function, expected in (
        (conflicts.raise_in_the_middle, r"an exception has ended transfer"),
        (conflicts.roll_savepoints_back, r"a savepoint was rolled back with transfer"),
        (conflicts.deadlock, r"rolled back by the server: 40P01"),
        (conflicts.conflict, r"rolled back by the server: 40001"),
    ):
        _client(banks, function, banks.accounts[:4]).finish()
        banks.expect(banks.logged(expected), f"a client reports: {expected}")
    load.finish()
    said = Operations.read(banks.journal).counts()
    # Two per savepoint, two per client of the deadlock, one per client of the conflict.
    banks.expect(said["ok"] == committed_by_load + 4 * 2 + 2 * 2 + 2, f"who retried won: {said}")
    banks.expect(said["fail"] == 4 + 4, f"what was rolled back and not retried failed: {said}")


def long_transaction(banks: Banks) -> None:
    """A transaction with a low sequence number stays open while a thousand events are published."""
    banks.open()
    account, *others = banks.accounts
    long = _client(banks, long_transactions.hold, account, PGAPPNAME="long")
    banks.until(lambda: _is_held(banks), "the long transaction holds its place")
    # Of the same key: they wait for the lock on the account's row.
    followers = banks.begin_writing(4, accounts=[account], refused=0)
    bulk = _client(banks, long_transactions.write_in_bulk, others, BULKS, TRANSFERS_IN_BULK)
    bulk.finish(ALL_WITHIN_S)
    banks.until(
        lambda: banks.downstream.one("SELECT count(*) FROM credit") == BULKS * TRANSFERS_IN_BULK,
        "all later events have their effect",
        within=ALL_WITHIN_S,
    )
    banks.expect(_is_held(banks), "the long transaction was open all the time")
    banks.expect(followers.is_running, "the key's later transfers wait for it")
    long.send(signal.SIGCONT)
    long.finish()
    followers.finish()


def low_number_last(banks: Banks) -> None:
    """Expect that the lowest number was published after the highest of the others."""
    query = "SELECT seq, key, settled_at FROM shield_outbox ORDER BY seq"
    first, *others = banks.upstream.rows(query)
    banks.expect(first.key == banks.accounts[0], "the long transaction has the lowest number")
    banks.expect(
        all(row.settled_at < first.settled_at for row in others if row.key != first.key),
        "and its event went out after all that others had written",
    )


def bad_events_refused(banks: Banks) -> None:
    """A client adds events that no table or topic accepts, in transfers that continue or end."""
    banks.open()
    load = banks.begin_writing(60)
    banks.upstream.call("topics", bad_events.declare_bad_topics).finish()
    _client(banks, bad_events.add_bad_events, banks.accounts[0]).finish()
    load.finish()


def nothing_of_bad_events(banks: Banks) -> None:
    """Search for the refused events everywhere."""
    kinds = len(list(bad_events.bad_parts()))
    said = Operations.read(banks.journal)
    banks.expect(
        said.counts() == {"ok": 60 + kinds, "fail": 3 * kinds},
        f"transfers went on or ended after the refusal of a bad event: {said.counts()}",
    )
    refused = said.of("fail")
    banks.expect(not refused & {record.id for record in banks.records()}, "none is on a topic")
    for side in banks.sides:
        banks.expect(not side.one("SELECT count(*) FROM shield_parked"), "none is parked")
        for table in ("shield_outbox", "shield_inbox"):
            banks.expect(
                not _rows(side, table, "event_id", refused), f"none is in {table} of {side.name}"
            )


def _client(
    banks: Banks, function: Callable[..., None], *arguments: Any, **environment: str
) -> Worker:
    """Start a client that keeps a journal of its work."""
    return banks.upstream.call(
        function.__name__,
        function,
        banks.upstream.url,
        str(banks.journal),
        *arguments,
        **environment,
    )


def _rows(side: Side, table: str, column: str, events: Iterable[UUID]) -> int:
    """Return the number of rows of these events."""
    query = f"SELECT count(*) FROM {table} WHERE {column} = ANY(:events)"
    return int(side.one(query, events=list(events)))


def _committed(banks: Banks, operations: Iterable[UUID]) -> int:
    """Return how many of these transfers are stored, each with its event."""
    query = (
        "SELECT count(*), count(event_id) FROM transfer FULL JOIN shield_outbox ON event_id = id "
        "WHERE coalesce(id, event_id) = ANY(:operations)"
    )
    ((rows, events),) = banks.upstream.rows(query, operations=list(operations))
    banks.expect(rows == events, f"{rows} rows have {events} events")
    return int(rows)


def _ok(banks: Banks) -> int:
    """Return how many operations have surely been committed."""
    return Operations.read(banks.journal).counts()["ok"]


def _is_held(banks: Banks) -> bool:
    """Return whether the long transaction is open, with its number and its snapshot."""
    return bool(
        banks.upstream.one(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'long' "
            "AND datname = current_database() AND state = 'idle in transaction' "
            "AND backend_xid IS NOT NULL AND backend_xmin IS NOT NULL"
        )
    )


FAULTS = (
    Fault(id="F1", name="clients killed around their COMMIT", run=killed_before_commit),
    Fault(id="F2", name="COMMIT lost, or the answer to it", run=commit_lost),
    Fault(id="F3", name="exception, savepoint, deadlock, serialization failure", run=rolled_back),
    Fault(
        id="F7",
        name="long transaction with a low sequence number",
        run=long_transaction,
        after=low_number_last,
    ),
    Fault(
        id="F8",
        name="bad events are refused at insert",
        run=bad_events_refused,
        after=nothing_of_bad_events,
    ),
)
