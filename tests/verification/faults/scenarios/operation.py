"""F14 to F16: undeliverable events, relays that are asked to stop, and an upgrade."""

from __future__ import annotations

import time
from functools import partial
from signal import SIGTERM

from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from shieldtx.cli.errors import MISCONFIGURED
from shieldtx.store.schema import Schema
from tests.verification.faults.bank import by_hand
from tests.verification.faults.bank.releases import (
    LATER_REVISION,
    make_later_release,
    run_later_release,
)
from tests.verification.faults.banks import Banks
from tests.verification.faults.matrix import Fault
from tests.verification.faults.proxy import TO_CLIENT
from tests.verification.faults.scenarios.relay import has_shards, owners
from tests.verification.faults.world import own_kafka

ADMIN_S = 20.0


def poison(banks: Banks) -> None:
    """Events that the broker never accepts lie among good ones, of other and of equal keys."""
    up = banks.upstream
    one, other, third = banks.accounts[:3]
    banks.open(but="upstream relay")
    _limit_messages(banks, 100_000)
    banks.write(30)
    for name, accounts, size in (
        # Above the limit of the relay below, which applies it without the broker.
        ("too large", (one, one, other), 1_500_000),
        # Only the broker knows this limit: it refuses the whole batch, with its good events.
        ("larger than its topic takes", (one, third), 150_000),
    ):
        up.call(name, partial(by_hand.transfer_too_much, size=size), *accounts).finish()
        banks.write(30)
    # Finding an event that only the broker rejects takes more requests than a good batch.
    relay = up.relay(
        SHIELDTX_RELAY_LEASE="20",
        SHIELDTX_RELAY_SEND_TIMEOUT="15",
        SHIELDTX_MAX_PAYLOAD_BYTES="1000000",
    )
    banks.drain()
    ended = dict(map(tuple, up.rows(_FAILURES)))
    banks.expect(ended == {"client": 3, "broker": 2}, f"the poison alone fails, not {ended}")
    undone = {row.id for row in up.rows("SELECT id FROM withdrawal")}
    failed = up.rows("SELECT event_id FROM shield_outbox WHERE status = 'FAILED'")
    banks.expect(undone == {row.event_id for row in failed}, "each is rolled back where it began")
    banks.expect(up.one(_ATTEMPTS) == 1, "the others go out at their first attempt")
    banks.expect(not relay.has_logged("action=broker_unavailable"), "poison is not an outage")


_FAILURES = """
SELECT CASE WHEN last_error LIKE '%bytes, the limit is%' THEN 'client'
            WHEN last_error LIKE '%MessageSizeTooLarge%' THEN 'broker' ELSE last_error END,
       count(*)
FROM shield_outbox WHERE status = 'FAILED' GROUP BY 1
"""
_ATTEMPTS = "SELECT max(attempts) FROM shield_outbox WHERE status = 'PROCESSED'"


def stopped_under_load(banks: Banks) -> None:
    """A relay under load is asked to stop and stops in order; another is asked twice."""
    up = banks.upstream
    banks.open(but="upstream relay")
    clients = banks.begin_writing(200, pause=0.02)
    # A lease too long to wait for.
    relay = up.relay(SHIELDTX_RELAY_LEASE="600")
    banks.until(lambda: up.outbox().get("PROCESSED", 0) > 40, "the relay is running")
    banks.expect(relay.terminate() == 0, "SIGTERM leads to a graceful end")
    banks.expect(clients.is_running or up.unsettled() > 0, "there is work left")
    banks.expect("PROCESSING" not in up.outbox(), "nothing is left under a lease")
    banks.expect(not owners(up), "the shards are free")
    clients.finish()
    _stop_twice(banks)
    banks.upstream.relay()


def _stop_twice(banks: Banks) -> None:
    """Ask a relay that waits for a broker to stop, and ask again."""
    up = banks.upstream
    relay = up.relay(SHIELDTX_RELAY_LEASE="6", SHIELDTX_RELAY_SEND_TIMEOUT="4.5")
    banks.until(lambda: not up.unsettled(), "the relay sends what was left")
    with banks.proxy.hold(to={TO_CLIENT}):
        banks.write(20)
        banks.until(lambda: "PROCESSING" in up.outbox(), "the relay waits for an acknowledgement")
        relay.send(SIGTERM)
        banks.until(partial(relay.has_logged, "action=worker_stopping"), "it reports the request")
        banks.expect(relay.is_running, "it lets its pass end")
        began = time.monotonic()
        relay.send(SIGTERM)
        banks.expect(relay.join(20) and relay.exit_status == 128 + SIGTERM, "it leaves, with 143")
        # Without waiting for its send, which takes 4.5 s.
        banks.expect(time.monotonic() - began < 2, "it leaves at once")
    banks.expect("PROCESSING" in up.outbox(), "what it was about stays under its lease")
    banks.expect(len(owners(up)) == 1, "so do its shards")


def upgraded(banks: Banks) -> None:
    """The schema is upgraded while an old release works; the new one joins, the old one leaves."""
    later = str(make_later_release(banks.folder, Schema(banks.upstream.engine).current() or ""))
    banks.open()
    old = [worker for side in banks.sides for worker in side.workers]
    clients = banks.begin_writing(150, pause=0.1)
    upgrades = [
        side.call("upgrade", run_later_release, later, "db", "upgrade") for side in banks.sides
    ]
    for upgrade in upgrades:
        upgrade.finish()
    _join(banks, later)
    clients.finish()
    banks.drain()
    for side in banks.sides:
        banks.expect(Schema(side.engine).current() == LATER_REVISION, f"{side.name} is upgraded")
    banks.expect(all(worker.is_running for worker in old), "the old release works all the time")
    again = banks.upstream.launch("relay")
    banks.expect(
        again.join(30) and again.exit_status == MISCONFIGURED,
        "the old release does not start again",
    )
    banks.expect(again.has_logged("a newer one made them; install that one"), "it reports why")
    for worker in old:
        banks.expect(worker.terminate() == 0, f"{worker.name} leaves in order")
    banks.write(40)


def _join(banks: Banks, later: str) -> None:
    """Start relays and consumers of the later release next to the old ones."""
    new = [
        (side, [side.call(words[0], run_later_release, later, *words) for words in commands])
        for side in banks.sides
        for commands in [(("relay",), ("consume", side.group))]
    ]
    for side, (relay, consumer) in new:
        relay.await_ready()
        consumer.await_ready()
        banks.until(partial(has_shards, side, relay), "a new relay gets shards")
        banks.until(lambda side=side: len(owners(side)) == 2, "an old one keeps shards")


def _limit_messages(banks: Banks, size: int) -> None:
    """Let the topics of the banks accept no larger batches."""
    limit = ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
    changes = [
        ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[limit])
        for topic in banks.topics
    ]
    admin = AdminClient({"bootstrap.servers": banks.kafka.bootstrap})
    for done in admin.incremental_alter_configs(changes, request_timeout=ADMIN_S).values():
        done.result(ADMIN_S)


FAULTS = (
    Fault(id="F14", name="poison among good events", run=poison),
    Fault(
        id="F15",
        name="SIGTERM under load, once and twice",
        run=stopped_under_load,
        setting=own_kafka,
    ),
    Fault(id="F16", name="a schema upgrade with old and new processes", run=upgraded),
)
