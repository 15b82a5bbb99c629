"""F59: a release breaks a handler, which is paused until the next release repairs it."""

from __future__ import annotations

from pathlib import Path

from tests.verification.faults.bank import defects
from tests.verification.faults.banks import Banks
from tests.verification.faults.matrix import Fault
from tests.verification.faults.scenarios.consumer import Revived
from tests.verification.faults.scenarios.members import consumers_of

BREAKER = {
    "SHIELDTX_CONSUMER_BREAKER": "5",
    # Short, since the interval doubles with each failed probe.
    "SHIELDTX_CONSUMER_PROBE_INTERVAL": "0.2",
    "BANK_HANDLER_LEASE": "1",
}
DEATHS = 3
"""Deaths in probes. The wait for the next one doubles with each of them."""

GIVEN_UP = "no event is given up because of the defect"
NOT_BURNT = "no attempt of a paused handler counts"

_REFUSED = "SELECT count(*) FROM shield_outbox WHERE tx_kind = 'ROLLBACK'"
_COUNTED = (
    "SELECT coalesce(sum(attempts - together::int), 0) FROM shield_inbox WHERE settled_at IS NULL"
)
"""Attempts that count: not those that may have died because of another event, or as a probe."""
_PROBES = "SELECT coalesce(max(probes), -1) FROM shield_pause"
_KNOWN = "SELECT count(*) FROM shield_pause WHERE paused_at < now() - interval '3 s'"
"""Pauses that all consumers know: each reads them once a second."""


def paused_until_repaired(banks: Banks) -> None:
    """All calls raise; the handler is paused; idle consumers and probes are killed; all resumes."""
    side, defect = banks.downstream, banks.folder / "defect"
    side.environment = {**side.environment, **BREAKER, defects.ENVIRONMENT: str(defect)}
    banks.open(but="downstream consume")
    _put_in(defect, defects.RAISES)
    consumers = [side.consume() for _ in range(2)]
    banks.write(80, refused=0.2, ways=("at once",))
    banks.until(lambda: side.one(_PROBES) > 1 and side.one(_KNOWN), "probes fail", 60)
    _await_all_received(banks)
    counted = side.one(_COUNTED)
    for consumer in consumers:
        consumer.kill()
    side.consume()
    banks.write(10, refused=0.0)
    _await_all_received(banks)
    _expect_paused(banks, counted)
    _kill_in_probes(banks, defect)
    _expect_paused(banks, counted)
    defect.unlink()
    banks.until(lambda: side.one(_PROBES) < 0, "a probe ends the pause", 90)


def _put_in(defect: Path, content: str) -> None:
    """Write a file that no reader sees half written."""
    written = defect.with_suffix(".new")
    written.write_text(content, encoding="ascii")
    written.rename(defect)


def _kill_in_probes(banks: Banks, defect: Path) -> None:
    """Let each probe kill its process, which a supervisor restarts; leave a consumer running."""
    side = banks.downstream
    for consumer in consumers_of(side):
        consumer.kill()
    _put_in(defect, defects.KILLS)
    revived = Revived(side)

    def have_died() -> bool:
        revived.look()
        return revived.deaths >= DEATHS

    banks.until(have_died, "probes die with their processes", 120)
    _put_in(defect, defects.RAISES)
    side.consume()


def _await_all_received(banks: Banks) -> None:
    written = "SELECT count(*) FROM transfer"
    banks.until(
        lambda: (
            banks.downstream.one("SELECT count(*) FROM shield_inbox") == banks.upstream.one(written)
        ),
        "all events are received",
    )


def _expect_paused(banks: Banks, counted: int) -> None:
    """Expect that the pause lasts, and has cost neither an event nor an attempt."""
    side = banks.downstream
    banks.expect(side.one(_PROBES) >= 0, "the handler stays paused")
    banks.expect(side.one("SELECT count(*) FROM credit") == 0, "a paused handler has no effect")
    banks.expect(side.one(_COUNTED) == counted, f"{NOT_BURNT}: {side.one(_COUNTED) - counted} do")
    banks.expect(side.one(_REFUSED) == 0, GIVEN_UP)


def _only_refusals_are_given_up(banks: Banks) -> None:
    """Expect that each event with a rollback was refused by the repaired handler."""
    for_others = (
        "SELECT count(*) FROM shield_inbox "
        "WHERE status = 'MAX_RECONSUMED' AND last_error NOT LIKE 'Refused: %'"
    )
    banks.expect(banks.downstream.one(for_others) == 0, GIVEN_UP)
    banks.expect(banks.downstream.one(_PROBES) < 0, "the handler stays resumed")


FAULTS = (
    Fault(
        id="F59",
        name="a handler with a defect: paused, probes killed, repaired",
        run=paused_until_repaired,
        after=_only_refusals_are_given_up,
    ),
)
