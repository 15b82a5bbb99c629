"""F33: half messages whose local transactions are open, lost, or known to nobody."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from sqlalchemy import make_url

from tests.verification.faults.bank import TRANSFERRED
from tests.verification.faults.bank.half_message_clients import SOUND_ENDS, End, Stand
from tests.verification.faults.bank.ledger_database import LEDGER
from tests.verification.faults.banks import Banks
from tests.verification.faults.half_message_clients import (
    DIES_UNHEARD,
    HalfMessageClient,
    HalfMessageClients,
)
from tests.verification.faults.journal import Operations
from tests.verification.faults.matrix import Fault
from tests.verification.faults.proxy import FaultProxy, postgres
from tests.verification.faults.workers import Worker
from tests.verification.faults.world import own_ledger

IN_FLIGHT = "the checker said UNKNOWN"
PATIENT = {
    "SHIELDTX_BARRIER_PATIENCE": "20",
    "SHIELDTX_HALF_CHECK_TIMEOUT": "25",
    "SHIELDTX_HALF_CHECK_INTERVAL": "40",
}
"""Of a relay whose check waits for the end of a local transaction, and for nothing less."""

CHECKS = 15
HURRIED = {
    "SHIELDTX_HALF_CHECKS": str(CHECKS),
    "SHIELDTX_BARRIER_PATIENCE": "0.1",
    "SHIELDTX_HALF_CHECK_TIMEOUT": "0.5",
    "SHIELDTX_HALF_CHECK_INTERVAL": "0.6",
}
"""Of a relay that is to use all its checks up in vain."""

LOST = 3
"""COMMITs on each way."""
HOUR_S = 3600.0


def open_local_transactions(banks: Banks) -> None:
    """Checks meet local transactions that are in flight, and end later: well, badly, or killed."""
    counter, up = HalfMessageClients(banks), banks.upstream
    banks.open(but="upstream relay")
    relay = up.relay()
    others = banks.begin_writing(40)
    _asked_again(counter)
    relay.terminate()
    up.relay(**PATIENT)
    _waited_for(counter)
    _late(counter)
    others.finish()


def _asked_again(counter: HalfMessageClients) -> None:
    """The check gives up before the local transaction ends, and a later one learns its end."""
    commits = counter.begin("later-committed", stand=Stand.OPEN, dies_at=DIES_UNHEARD)
    raises = counter.begin("later-raised", stand=Stand.OPEN, ends=(End.RAISED,))
    killed = counter.begin("later-killed", stand=Stand.OPEN)
    # Its word comes between two checks.
    says = counter.begin("later-said", stand=Stand.OPEN)
    tellers = [commits, raises, killed, says]
    accounts = [teller.shift.name for teller in tellers]
    counter.until_they_stand(*tellers)
    counter.until_asked_in_vain(IN_FLIGHT, *accounts)
    counter.expect_unseen(accounts)
    killed.worker.kill()
    for teller in (commits, raises, says):
        teller.end()
    counter.expect_ends(
        {
            "later-committed": "PROCESSED",
            "later-raised": "DISCARDED",
            "later-killed": "DISCARDED",
            "later-said": "PROCESSED",
        }
    )


def _waited_for(counter: HalfMessageClients) -> None:
    """The check waits at the barrier, and learns how the local transaction ends."""
    for name, end, status in (
        ("waited-committed", End.COMMITTED, "PROCESSED"),
        ("waited-raised", End.RAISED, "DISCARDED"),
        ("waited-killed", End.COMMITTED, "DISCARDED"),
    ):
        teller = counter.begin(name, stand=Stand.OPEN, ends=(end,), dies_at=DIES_UNHEARD)
        counter.until_they_stand(teller)
        counter.banks.until(counter.ledger.is_waited_for, f"a check waits for {name}")
        counter.expect_unseen([name])
        if name == "waited-killed":
            teller.worker.kill()
        else:
            teller.end()
        counter.expect_ends({name: status})
        checks = counter.checks(name)
        counter.banks.expect(checks == 1, f"{checks} checks learn the end of {name}")


def _late(counter: HalfMessageClients) -> None:
    """A local transaction that comes after its check fails; one that is immune is left alone."""
    immune = immune_while_another_is_checked(counter)
    late = counter.begin("late", stand=Stand.PREPARED, immunity=0)
    counter.until_they_stand(late)
    counter.until_state("DISCARDED", "late")
    counter.banks.expect(counter.checks("immune") == 0, "who is immune is not asked about")
    late.end()
    immune.end()
    counter.banks.expect(late.worker.has_logged("LateTransaction"), "the late one is told")
    counter.expect_ends({"late": "DISCARDED", "immune": "PROCESSED"})


def rolled_back_silently(banks: Banks) -> None:
    """A local transaction rolls back silently, and its teller believes that it has committed."""
    counter = HalfMessageClients(banks)
    banks.open()
    others = banks.begin_writing(40)
    teller = counter.begin("aborted", ends=(End.ABORTED,))
    teller.end()
    counter.banks.expect(teller.worker.has_logged("did not commit"), "the teller is told")
    counter.expect_ends({"aborted": "DISCARDED"})
    others.finish()


def immune_while_another_is_checked(counter: HalfMessageClients) -> HalfMessageClient:
    """Let a message that is immune outlive a check of one that is not, of a teller that is dead."""
    immune = counter.begin("immune", stand=Stand.PREPARED, immunity=HOUR_S)
    counter.until_they_stand(immune)
    gone = counter.begin("gone", stand=Stand.PREPARED, immunity=0)
    counter.until_they_stand(gone)
    gone.worker.kill()
    counter.until_state("DISCARDED", "gone")
    return immune


def unreachable(banks: Banks) -> None:
    """The store is away while a message is prepared, while its end is told, and while it is asked.

    So is the ledger, while it is asked about.
    """
    counter, up = HalfMessageClients(banks), banks.upstream
    with (
        FaultProxy(banks.postgres.port, postgres) as tellers,
        FaultProxy(banks.postgres.port, postgres) as relays,
        FaultProxy(banks.postgres.port, postgres) as asked,
    ):
        banks.open(but="upstream relay")
        relay = up.relay(
            SHIELDTX_DATABASE_URL=_through(relays, up.url),
            **{LEDGER: _through(asked, counter.ledger.url), **PATIENT},
        )
        by_proxy = {"SHIELDTX_DATABASE_URL": _through(tellers, up.url)}
        _while_prepared(counter, tellers, by_proxy)
        _while_told(counter, tellers, by_proxy)
        _while_asked(counter, relays, asked, relay)
        counter.begin("sound", transfers=12, tellers=3, ends=SOUND_ENDS).end()
        banks.drain()
        relay.terminate()
    up.relay()


def _while_prepared(
    counter: HalfMessageClients, proxy: FaultProxy, by_proxy: dict[str, str]
) -> None:
    """Without a stored message the local transaction is not run, nor with one that may be."""
    banks = counter.banks
    for name, lose, stored in (
        ("refused", proxy.cut, 0),
        ("unheard", partial(proxy.lose_request, "INSERT", times=LOST), 0),
        ("unanswered", partial(proxy.lose_answer, "INSERT", times=LOST), LOST),
    ):
        before = _failed(banks)
        with lose() as loss:
            tellers = counter.begin(name, transfers=LOST, environment=by_proxy)
            tellers.end()
            # What has never been connected is not cut, but finds nobody.
            struck = loss.struck == LOST or tellers.worker.has_logged("onnection refused")
        banks.expect(struck, f"{name}: {loss.struck} were struck")
        banks.expect(_failed(banks) - before == LOST, f"{name}: none is prepared for its teller")
        found = banks.upstream.one(
            "SELECT count(*) FROM shield_outbox WHERE key LIKE :like", like=f"{name}-%"
        )
        banks.expect(found == stored, f"{name}: {found} half messages are there")
        booked = counter.ledger.one(
            "SELECT count(*) FROM transfer WHERE account LIKE :like", like=f"{name}-%"
        )
        banks.expect(booked == 0, f"{name}: {booked} local transactions were run")
    counter.expect_ends({f"unanswered-{n}": "DISCARDED" for n in range(LOST)})


def _failed(banks: Banks) -> int:
    return Operations.read(banks.journal).counts()["fail"]


def _while_told(counter: HalfMessageClients, proxy: FaultProxy, by_proxy: dict[str, str]) -> None:
    """A word is lost, or the answer to it; checks find the same end."""
    for way, lose in (
        ("cut", proxy.cut),
        ("unheard", partial(proxy.lose_request, "UPDATE")),
        ("unanswered", partial(proxy.lose_answer, "UPDATE")),
    ):
        for end, status in ((End.COMMITTED, "PROCESSED"), (End.ROLLED_BACK, "DISCARDED")):
            name = f"{way}-{end.replace(' ', '-')}"
            teller = counter.begin(name, stand=Stand.OPEN, ends=(end,), environment=by_proxy)
            counter.until_they_stand(teller)
            with lose() as loss:
                teller.end()
                counter.banks.expect(loss.struck, f"{name}: its word is lost")
            counter.banks.expect(
                teller.worker.has_logged("was lost: it will be checked"), f"{name} notices"
            )
            counter.expect_ends({name: status})


def _while_asked(
    counter: HalfMessageClients, store: FaultProxy, ledger: FaultProxy, relay: Worker
) -> None:
    """The ledger cannot be asked for a while, and then the answer cannot be written down."""
    banks = counter.banks
    ends = {"mute-committed": "PROCESSED", "mute-raised": "DISCARDED"}
    with ledger.cut() as cut:
        counter.begin("mute-committed", dies_at=DIES_UNHEARD).end()
        counter.begin("mute-raised", ends=(End.RAISED,)).end()
        counter.until_asked_in_vain("OperationalError", *ends)
        counter.expect_unseen(ends)
        banks.expect(cut.struck, "the relay was connected with the ledger")
    counter.let_time_pass()
    counter.expect_ends(ends)
    for name, end, status in (
        ("unwritten-committed", End.COMMITTED, "PROCESSED"),
        ("unwritten-raised", End.RAISED, "DISCARDED"),
    ):
        teller = counter.begin(name, stand=Stand.OPEN, ends=(end,), dies_at=DIES_UNHEARD)
        counter.until_they_stand(teller)
        banks.until(counter.ledger.is_waited_for, f"a check waits for {name}")
        with store.cut() as cut:
            before = _failed_passes(relay)
            teller.end()
            banks.until(
                lambda b=before: _failed_passes(relay) > b, "the relay cannot write its answer down"
            )
            banks.expect(cut.struck, "the relay was connected with its store")
        banks.expect(counter.state(name) == "HALF", f"the answer about {name} is lost")
        counter.expect_unseen([name])
        counter.let_time_pass()
        counter.expect_ends({name: status})


def _failed_passes(relay: Worker) -> int:
    """How often the relay's checks have come to nothing."""
    return relay.log.read_text(errors="replace").count(f"checks of {TRANSFERRED} failed")


def known_to_nobody(banks: Banks) -> None:
    """Fifteen checks cannot tell: the message is parked, with an alarm, until a person decides."""
    counter, up = HalfMessageClients(banks), banks.upstream
    banks.open(but="upstream relay")
    relay = up.relay(**HURRIED)
    others = banks.begin_writing(40, pause=0.1)
    commits = counter.begin("unknown-committed", stand=Stand.OPEN)
    raises = counter.begin("unknown-raised", stand=Stand.OPEN, ends=(End.RAISED,))
    accounts = [commits.shift.name, raises.shift.name]
    counter.until_they_stand(commits, raises)
    counter.until_state("UNRESOLVED", *accounts, within=60)
    for account in accounts:
        checks = counter.checks(account)
        banks.expect(checks == CHECKS, f"{account} is parked after {checks} checks")
        alarm = f"{counter.message(account)} is UNRESOLVED"
        banks.expect(relay.has_logged(alarm), "an alarm is raised")
    others.finish()
    counter.expect_unseen(accounts)
    commits.end()
    raises.end()
    banks.expect(commits.worker.has_logged("waits for a person"), "the late word is refused")
    counter.expect_unseen(accounts)
    _decided(counter, {"unknown-committed": "commit", "unknown-raised": "rollback"})
    counter.expect_ends({"unknown-committed": "PROCESSED", "unknown-raised": "DISCARDED"})


def _decided(counter: HalfMessageClients, decisions: Mapping[str, str]) -> None:
    """A person looks into the ledger, and decides on the command line."""
    up = counter.side
    for account, word in decisions.items():
        counter.banks.expect(counter.state(account) == "UNRESOLVED", f"{account} waits")
        up.launch("half", word, counter.message(account), "--yes", "--who", "ann").finish()
    audited = up.rows("SELECT action FROM shield_audit WHERE who = 'ann' ORDER BY action")
    actions = [row.action for row in audited]
    counter.banks.expect(actions == ["half commit", "half rollback"], f"audited is {actions}")


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
        name="the store away in prepare, word and check",
        run=unreachable,
        setting=own_ledger,
    ),
    Fault(
        id="F33c",
        name="fifteen checks that cannot tell, and a person who can",
        run=known_to_nobody,
        setting=own_ledger,
    ),
    Fault(
        id="F33d",
        name="a local transaction that rolls back silently",
        run=rolled_back_silently,
        setting=own_ledger,
    ),
)
