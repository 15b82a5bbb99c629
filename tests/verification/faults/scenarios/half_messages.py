"""F33: half messages whose local transactions are open, lost, or of unknown outcome."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from sqlalchemy import make_url

from tests.verification.faults.bank import TRANSFERRED
from tests.verification.faults.bank.half_message_clients import SOUND_ENDS, End, PausePoint
from tests.verification.faults.bank.ledger_database import LEDGER
from tests.verification.faults.banks import Banks
from tests.verification.faults.half_message_clients import (
    EXIT_UNREPORTED,
    HalfMessageClient,
    HalfMessageClients,
)
from tests.verification.faults.journal import Operations
from tests.verification.faults.matrix import Fault
from tests.verification.faults.proxy import FaultProxy, postgres
from tests.verification.faults.workers import Worker
from tests.verification.faults.world import own_ledger

UNKNOWN = "the checker returned UNKNOWN"
PATIENT = {
    "SHIELDTX_BARRIER_PATIENCE": "20",
    "SHIELDTX_HALF_CHECK_TIMEOUT": "25",
    "SHIELDTX_HALF_CHECK_INTERVAL": "40",
}
"""Settings of a relay whose check waits until the local transaction ends."""

CHECKS = 15
HURRIED = {
    "SHIELDTX_HALF_CHECKS": str(CHECKS),
    "SHIELDTX_BARRIER_PATIENCE": "0.1",
    "SHIELDTX_HALF_CHECK_TIMEOUT": "0.5",
    "SHIELDTX_HALF_CHECK_INTERVAL": "0.6",
}
"""Settings of a relay that soon uses up all its checks."""

LOST = 3
"""COMMITs in each direction."""
HOUR_S = 3600.0


def open_local_transactions(banks: Banks) -> None:
    """Checks meet local transactions in progress, which later commit, roll back, or are killed."""
    clients, up = HalfMessageClients(banks), banks.upstream
    banks.open(but="upstream relay")
    relay = up.relay()
    others = banks.begin_writing(40)
    _asked_again(clients)
    relay.terminate()
    up.relay(**PATIENT)
    _waited_for(clients)
    _late(clients)
    others.finish()


def _asked_again(clients: HalfMessageClients) -> None:
    """The check gives up before the local transaction ends, and a later one learns the outcome."""
    commits = clients.begin("later-committed", pause_at=PausePoint.OPEN, dies_at=EXIT_UNREPORTED)
    raises = clients.begin("later-raised", pause_at=PausePoint.OPEN, ends=(End.RAISED,))
    killed = clients.begin("later-killed", pause_at=PausePoint.OPEN)
    # Its commit call arrives between two checks.
    reports = clients.begin("later-said", pause_at=PausePoint.OPEN)
    paused = [commits, raises, killed, reports]
    accounts = [client.client_run.name for client in paused]
    clients.until_paused(*paused)
    clients.until_checks_fail(UNKNOWN, *accounts)
    clients.expect_unpublished(accounts)
    killed.worker.kill()
    for client in (commits, raises, reports):
        client.end()
    clients.expect_ends(
        {
            "later-committed": "PROCESSED",
            "later-raised": "DISCARDED",
            "later-killed": "DISCARDED",
            "later-said": "PROCESSED",
        }
    )


def _waited_for(clients: HalfMessageClients) -> None:
    """The check waits at the barrier, and learns the outcome of the local transaction."""
    for name, end, status in (
        ("waited-committed", End.COMMITTED, "PROCESSED"),
        ("waited-raised", End.RAISED, "DISCARDED"),
        ("waited-killed", End.COMMITTED, "DISCARDED"),
    ):
        client = clients.begin(name, pause_at=PausePoint.OPEN, ends=(end,), dies_at=EXIT_UNREPORTED)
        clients.until_paused(client)
        clients.banks.until(clients.ledger.is_waited_for, f"a check waits for {name}")
        clients.expect_unpublished([name])
        if name == "waited-killed":
            client.worker.kill()
        else:
            client.end()
        clients.expect_ends({name: status})
        checks = clients.checks(name)
        clients.banks.expect(checks == 1, f"{checks} checks learn the end of {name}")


def _late(clients: HalfMessageClients) -> None:
    """A local transaction after its check fails; an immune one is not checked."""
    immune = immune_while_another_is_checked(clients)
    late = clients.begin("late", pause_at=PausePoint.PREPARED, immunity=0)
    clients.until_paused(late)
    clients.until_state("DISCARDED", "late")
    clients.banks.expect(clients.checks("immune") == 0, "an immune message is not checked")
    late.end()
    immune.end()
    clients.banks.expect(late.worker.has_logged("LateTransaction"), "the late one gets the error")
    clients.expect_ends({"late": "DISCARDED", "immune": "PROCESSED"})


def rolled_back_silently(banks: Banks) -> None:
    """A local transaction rolls back silently, and its client assumes a commit."""
    clients = HalfMessageClients(banks)
    banks.open()
    others = banks.begin_writing(40)
    client = clients.begin("aborted", ends=(End.ABORTED,))
    client.end()
    clients.banks.expect(client.worker.has_logged("did not commit"), "the client gets the error")
    clients.expect_ends({"aborted": "DISCARDED"})
    others.finish()


def immune_while_another_is_checked(clients: HalfMessageClients) -> HalfMessageClient:
    """Return a client whose message is immune, after a check of a dead client's message."""
    immune = clients.begin("immune", pause_at=PausePoint.PREPARED, immunity=HOUR_S)
    clients.until_paused(immune)
    gone = clients.begin("gone", pause_at=PausePoint.PREPARED, immunity=0)
    clients.until_paused(gone)
    gone.worker.kill()
    clients.until_state("DISCARDED", "gone")
    return immune


def unreachable(banks: Banks) -> None:
    """The store is unreachable while a message is prepared, reported and checked.

    The ledger is unreachable during a check, too.
    """
    clients, up = HalfMessageClients(banks), banks.upstream
    with (
        FaultProxy(banks.postgres.port, postgres) as outbox,
        FaultProxy(banks.postgres.port, postgres) as relays,
        FaultProxy(banks.postgres.port, postgres) as asked,
    ):
        banks.open(but="upstream relay")
        relay = up.relay(
            SHIELDTX_DATABASE_URL=_through(relays, up.url),
            **{LEDGER: _through(asked, clients.ledger.url), **PATIENT},
        )
        by_proxy = {"SHIELDTX_DATABASE_URL": _through(outbox, up.url)}
        _while_prepared(clients, outbox, by_proxy)
        _while_reported(clients, outbox, by_proxy)
        _while_checked(clients, relays, asked, relay)
        clients.begin("sound", transfers=12, threads=3, ends=SOUND_ENDS).end()
        banks.drain()
        relay.terminate()
    up.relay()


def _while_prepared(
    clients: HalfMessageClients, proxy: FaultProxy, by_proxy: dict[str, str]
) -> None:
    """The local transaction does not run if its message is not stored, or only perhaps stored."""
    banks = clients.banks
    for name, lose, stored in (
        ("refused", proxy.cut, 0),
        ("unheard", partial(proxy.lose_request, "INSERT", times=LOST), 0),
        ("unanswered", partial(proxy.lose_answer, "INSERT", times=LOST), LOST),
    ):
        before = _failed(banks)
        with lose() as loss:
            client = clients.begin(name, transfers=LOST, environment=by_proxy)
            client.end()
            # A session that was never connected is not cut: its connection is refused.
            struck = loss.struck == LOST or client.worker.has_logged("onnection refused")
        banks.expect(struck, f"{name}: {loss.struck} were struck")
        banks.expect(_failed(banks) - before == LOST, f"{name}: none is prepared for its client")
        found = banks.upstream.one(
            "SELECT count(*) FROM shield_outbox WHERE key LIKE :like", like=f"{name}-%"
        )
        banks.expect(found == stored, f"{name}: {found} half messages are there")
        booked = clients.ledger.one(
            "SELECT count(*) FROM transfer WHERE account LIKE :like", like=f"{name}-%"
        )
        banks.expect(booked == 0, f"{name}: {booked} local transactions were run")
    clients.expect_ends({f"unanswered-{n}": "DISCARDED" for n in range(LOST)})


def _failed(banks: Banks) -> int:
    return Operations.read(banks.journal).counts()["fail"]


def _while_reported(
    clients: HalfMessageClients, proxy: FaultProxy, by_proxy: dict[str, str]
) -> None:
    """A commit or rollback call is lost, or its answer; checks find the same outcome."""
    for way, lose in (
        ("cut", proxy.cut),
        ("unheard", partial(proxy.lose_request, "UPDATE")),
        ("unanswered", partial(proxy.lose_answer, "UPDATE")),
    ):
        for end, status in ((End.COMMITTED, "PROCESSED"), (End.ROLLED_BACK, "DISCARDED")):
            name = f"{way}-{end.replace(' ', '-')}"
            client = clients.begin(
                name, pause_at=PausePoint.OPEN, ends=(end,), environment=by_proxy
            )
            clients.until_paused(client)
            with lose() as loss:
                client.end()
                clients.banks.expect(loss.struck, f"{name}: its call is lost")
            clients.banks.expect(
                client.worker.has_logged("outcome not recorded"), f"{name} notices"
            )
            clients.expect_ends({name: status})


def _while_checked(
    clients: HalfMessageClients, store: FaultProxy, ledger: FaultProxy, relay: Worker
) -> None:
    """The ledger is unreachable for a while, and then the outcome cannot be stored."""
    banks = clients.banks
    ends = {"mute-committed": "PROCESSED", "mute-raised": "DISCARDED"}
    with ledger.cut() as cut:
        clients.begin("mute-committed", dies_at=EXIT_UNREPORTED).end()
        clients.begin("mute-raised", ends=(End.RAISED,)).end()
        clients.until_checks_fail("OperationalError", *ends)
        clients.expect_unpublished(ends)
        banks.expect(cut.struck, "the relay was connected with the ledger")
    clients.make_checks_due()
    clients.expect_ends(ends)
    for name, end, status in (
        ("unwritten-committed", End.COMMITTED, "PROCESSED"),
        ("unwritten-raised", End.RAISED, "DISCARDED"),
    ):
        client = clients.begin(name, pause_at=PausePoint.OPEN, ends=(end,), dies_at=EXIT_UNREPORTED)
        clients.until_paused(client)
        banks.until(clients.ledger.is_waited_for, f"a check waits for {name}")
        with store.cut() as cut:
            before = _failed_passes(relay)
            client.end()
            banks.until(
                lambda b=before: _failed_passes(relay) > b, "the relay cannot write its answer down"
            )
            banks.expect(cut.struck, "the relay was connected with its store")
        banks.expect(clients.state(name) == "HALF", f"the answer about {name} is lost")
        clients.expect_unpublished([name])
        clients.make_checks_due()
        clients.expect_ends({name: status})


def _failed_passes(relay: Worker) -> int:
    """Return how often a pass of the relay's checks has failed."""
    failed = f'action=job_failed worker=relay job="checks of {TRANSFERRED}"'
    return relay.log.read_text(errors="replace").count(failed)


def unresolved(banks: Banks) -> None:
    """Fifteen checks fail: the message is UNRESOLVED, with an alarm, until an operator decides."""
    clients, up = HalfMessageClients(banks), banks.upstream
    banks.open(but="upstream relay")
    relay = up.relay(**HURRIED)
    others = banks.begin_writing(40, pause=0.1)
    commits = clients.begin("unknown-committed", pause_at=PausePoint.OPEN)
    raises = clients.begin("unknown-raised", pause_at=PausePoint.OPEN, ends=(End.RAISED,))
    accounts = [commits.client_run.name, raises.client_run.name]
    clients.until_paused(commits, raises)
    clients.until_state("UNRESOLVED", *accounts, within=60)
    for account in accounts:
        checks = clients.checks(account)
        banks.expect(checks == CHECKS, f"{account} is parked after {checks} checks")
        alarm = f"action=half_message_unresolved event_id={clients.message(account)}"
        banks.expect(relay.has_logged(alarm), "an alarm is raised")
    others.finish()
    clients.expect_unpublished(accounts)
    commits.end()
    raises.end()
    banks.expect(commits.worker.has_logged("waits for an operator"), "the late call is refused")
    clients.expect_unpublished(accounts)
    _decided(clients, {"unknown-committed": "commit", "unknown-raised": "rollback"})
    clients.expect_ends({"unknown-committed": "PROCESSED", "unknown-raised": "DISCARDED"})


def _decided(clients: HalfMessageClients, decisions: Mapping[str, str]) -> None:
    """An operator inspects the ledger, and decides on the command line."""
    up = clients.side
    for account, decision in decisions.items():
        clients.banks.expect(clients.state(account) == "UNRESOLVED", f"{account} waits")
        up.launch("half", decision, clients.message(account), "--yes", "--who", "ann").finish()
    audited = up.rows("SELECT action FROM shield_audit WHERE who = 'ann' ORDER BY action")
    actions = [row.action for row in audited]
    clients.banks.expect(actions == ["half commit", "half rollback"], f"audited is {actions}")


def _through(proxy: FaultProxy, url: str) -> str:
    return make_url(url).set(port=proxy.port).render_as_string(hide_password=False)


FAULTS = (
    Fault(
        id="F33a",
        name="checks of local transactions that are open, and end later",
        run=open_local_transactions,
        setting=own_ledger,
    ),
    Fault(
        id="F33b",
        name="store unreachable in prepare, outcome call and check",
        run=unreachable,
        setting=own_ledger,
    ),
    Fault(
        id="F33c",
        name="fifteen checks without an outcome, then an operator's decision",
        run=unresolved,
        setting=own_ledger,
    ),
    Fault(
        id="F33d",
        name="a local transaction that rolls back silently",
        run=rolled_back_silently,
        setting=own_ledger,
    ),
)
