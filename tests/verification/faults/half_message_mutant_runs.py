"""What hunts let half messages go through: a check or two, while their tellers stand still."""

from __future__ import annotations

from tests.verification.faults.bank.half_message_clients import End, Stand
from tests.verification.faults.banks import Banks
from tests.verification.faults.half_message_clients import DIES_UNHEARD, HalfMessageClients
from tests.verification.faults.scenarios.half_messages import (
    HURRIED,
    immune_while_another_is_checked,
)


def parked(banks: Banks) -> None:
    """Checks are used up, and then the local transaction rolls back."""
    counter = HalfMessageClients(banks)
    banks.open(but="upstream relay")
    banks.upstream.relay(**(HURRIED | {"SHIELDTX_HALF_CHECKS": "2"}))
    teller = counter.begin("parked", stand=Stand.OPEN, ends=(End.RAISED,))
    counter.until_they_stand(teller)
    banks.until(lambda: counter.state("parked") != "HALF", "its checks are used up")
    teller.end()


def checked_in_flight(banks: Banks) -> None:
    """A check comes while the local transaction is open, which then commits."""
    counter = HalfMessageClients(banks)
    banks.open()
    teller = counter.begin("flying", stand=Stand.OPEN, dies_at=DIES_UNHEARD)
    counter.until_they_stand(teller)
    banks.until(lambda: counter.is_answered("flying"), "it is checked")
    teller.end()


def immune(banks: Banks) -> None:
    """The local transaction takes its time, and no more than its immunity."""
    counter = HalfMessageClients(banks)
    banks.open()
    immune_while_another_is_checked(counter).end()


def believed(banks: Banks) -> None:
    """The local transaction rolls back silently."""
    counter = HalfMessageClients(banks)
    banks.open()
    counter.begin("aborted", ends=(End.ABORTED,)).end()
    banks.until(lambda: counter.state("aborted") != "HALF", "it has ended")
