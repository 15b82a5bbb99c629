"""Mutants of workers and upgrades: of what their operation relies on."""

from __future__ import annotations

import signal
from datetime import timedelta

from shieldtx.app import workers
from shieldtx.brokers.kafka import connection
from shieldtx.brokers.kafka.network_patches import Network
from shieldtx.consumer.compensation import Compensation
from shieldtx.scheduling import signals, worker
from shieldtx.store import inbox_receiver, upgrades
from shieldtx.store.blocked import BlockedRows
from tests.verification.faults.failpoints import Breaker
from tests.verification.faults.mutants.mutant import named


def _the_watchdog_knows_no_leases(breaker: Breaker) -> None:
    workers._longest_pass = lambda app, group: timedelta(0)


def _an_upgrade_waits_in_front_of_writers(breaker: Breaker) -> None:
    upgrades.LOCK_WAIT = timedelta(minutes=10)


def _parked_records_are_known_by_their_place(breaker: Breaker) -> None:
    inbox_receiver.digest_of = lambda *_: ""


def _rows_after_blocked_keys_stay(breaker: Breaker) -> None:
    BlockedRows._block = lambda self, relay, ends: None


def _failed_clients_stay_open(breaker: Breaker) -> None:
    Network.close = lambda self, node_id=None: None
    # A collection would close unreferenced clients.
    connection._free_failed_clients = worker.free_failed_pass = lambda: None


def _hangups_end_a_process_at_once(breaker: Breaker) -> None:
    signals._GRACEFUL = (signal.SIGTERM, signal.SIGINT)


def _late_rollbacks_count_as_early(breaker: Breaker) -> None:
    Compensation._refuse_late = lambda self, attempt: None


OF_WORKERS = named(
    "BANK_MUTANT",
    ("M55", "the watchdog ends handlers within their leases", _the_watchdog_knows_no_leases),
    (
        "M56",
        "an upgrade blocks writers while it waits for locks",
        _an_upgrade_waits_in_front_of_writers,
    ),
    (
        "M57",
        "parked records are identified by position alone",
        _parked_records_are_known_by_their_place,
    ),
    ("M58", "rows after blocked keys stay in the main queue", _rows_after_blocked_keys_stay),
    ("M59", "clients that failed to connect are not closed", _failed_clients_stay_open),
    ("M60", "SIGHUP ends a process at once", _hangups_end_a_process_at_once),
    ("M61", "rollbacks of purged events count as early", _late_rollbacks_count_as_early),
)
