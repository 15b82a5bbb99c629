"""Mutant runs of half messages: checks run while the clients pause."""

from __future__ import annotations

from tests.verification.faults.bank.half_message_clients import End, PausePoint
from tests.verification.faults.banks import Banks
from tests.verification.faults.half_message_clients import EXIT_UNREPORTED, HalfMessageClients
from tests.verification.faults.scenarios.half_messages import (
    HURRIED,
    immune_while_another_is_checked,
)


def parked(banks: Banks) -> None:
    """Checks are used up, and then the local transaction rolls back."""
    clients = HalfMessageClients(banks)
    banks.open(but="upstream relay")
    banks.upstream.relay(**(HURRIED | {"SHIELDTX_HALF_CHECKS": "2"}))
    client = clients.begin("parked", pause_at=PausePoint.OPEN, ends=(End.RAISED,))
    clients.until_paused(client)
    banks.until(lambda: clients.state("parked") != "HALF", "its checks are used up")
    client.end()


def checked_in_flight(banks: Banks) -> None:
    """A check runs while the local transaction is open, which then commits."""
    clients = HalfMessageClients(banks)
    banks.open()
    client = clients.begin("flying", pause_at=PausePoint.OPEN, dies_at=EXIT_UNREPORTED)
    clients.until_paused(client)
    banks.until(lambda: clients.is_answered("flying"), "it is checked")
    client.end()


def immune(banks: Banks) -> None:
    """The local transaction takes long, but less than its immunity."""
    clients = HalfMessageClients(banks)
    banks.open()
    immune_while_another_is_checked(clients).end()


def believed(banks: Banks) -> None:
    """The local transaction rolls back silently."""
    clients = HalfMessageClients(banks)
    banks.open()
    clients.begin("aborted", ends=(End.ABORTED,)).end()
    banks.until(lambda: clients.state("aborted") != "HALF", "it has ended")
