"""Mutant runs of workers and upgrades."""

from __future__ import annotations

from shieldtx.store.schema import Schema
from tests.verification.faults.banks import Banks
from tests.verification.faults.scenarios.consumer import Revived
from tests.verification.faults.scenarios.large_tables import OLD, impatient
from tests.verification.faults.scenarios.long_outages import away
from tests.verification.faults.survivors import PATIENCE_S

LEASE_KEPT = "a handler may take its whole lease"
TAKES_S, WATCHDOG_S, LEASE_S = 15.0, 8.0, 40.0
OUTAGE_S, SETTLED_S = 35.0, 10.0


def longer_than_the_watchdog(banks: Banks) -> None:
    """A handler takes longer than the watchdog allows a pass, but less than its lease."""
    side = banks.downstream
    banks.open(but="downstream consume")
    banks.write(1, refused=0)
    consumer = Revived(
        side,
        BANK_HANDLER_TAKES=str(TAKES_S),
        BANK_HANDLER_LEASE=str(LEASE_S),
        SHIELDTX_WATCHDOG=str(WATCHDOG_S),
    )
    settled = "SELECT count(*) FROM shield_inbox WHERE settled_at IS NOT NULL"

    def has_ended() -> bool:
        consumer.look()
        return bool(consumer.deaths or side.one(settled))

    banks.until(has_ended, "the event is settled, or the handler's process ended", PATIENCE_S)
    banks.expect(not consumer.deaths, LEASE_KEPT)


def upgraded_behind_a_reader(banks: Banks) -> None:
    """An upgrade waits for a transaction that reads, and clients write."""
    up = banks.upstream
    Schema(up.engine).downgrade(OLD)
    with up.engine.connect() as reader:
        reader.exec_driver_sql("SELECT count(*) FROM shield_outbox")
        upgrade = up.launch("db", "upgrade")
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
            "AND datname = current_database()"
        )
        banks.until(lambda: up.one(waiting), "the upgrade waits for the reader", PATIENCE_S)
        banks.write(10, url=impatient(up.url), accounts=banks.accounts[:2])
    upgrade.finish(PATIENCE_S)
    banks.open()


def kafka_away(banks: Banks) -> None:
    """The broker is unreachable until leaked descriptors would run out."""
    away(banks, banks.kafka.kill, banks.kafka.start, outage_s=OUTAGE_S, settled_s=SETTLED_S)
