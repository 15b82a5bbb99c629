"""`shieldtx dead`: list, show, replay."""

from __future__ import annotations

import getpass
import json
import socket
from uuid import uuid4

from kafka import KafkaProducer

from tests.acceptance.conftest import Result, Shop
from tests.support.reasons import without_site

SECRET = "four-digits-and-a-name"


def a_failed_order(shop: Shop, number: int = 1) -> str:
    """Make the broker reject an order permanently, by its size."""
    shop.place([number], note=SECRET + "x" * 1_100_000)
    relayed = shop.orders.run("relay", "--once")
    assert (relayed.status, relayed.err.count("1 events failed permanently")) == (1, 1)
    return str(shop.orders.one("SELECT event_id FROM shield_outbox WHERE status = 'FAILED'"))


def a_dead_compensation(shop: Shop) -> str:
    """Have an order refused whose compensation always fails."""
    shop.place([7], quantity=1000, note="for ever")
    shop.orders.ok("relay", "--once")
    shop.stock.ok("consume", shop.stock.environment["SHOP_STOCK_GROUP"], "--once")
    shop.stock.ok("relay", "--once")
    shop.orders.ok("consume", orders_group(shop), "--once")
    return str(shop.orders.one("SELECT event_id FROM shield_inbox WHERE status = 'DEAD'"))


def a_parked_record(shop: Shop) -> str:
    """Park a record on the topic that is not an event."""
    producer = KafkaProducer(bootstrap_servers=shop.kafka.bootstrap)
    topic = f"{shop.prefix}orders.placed.commit"
    sent = producer.send(topic, SECRET.encode(), key=b"\x1b[31mk", partition=1).get(timeout=10)
    producer.close()
    group = shop.stock.environment["SHOP_STOCK_GROUP"]
    shop.stock.ok("consume", group, "--once")
    return f"{group}/{topic}/1/{sent.offset}"


def orders_group(shop: Shop) -> str:
    return shop.orders.environment["SHOP_ORDERS_GROUP"]


def one(result: Result) -> dict[str, object]:
    assert result.status == 0, result
    (found,) = result.data
    return dict(found)


def test_failed_event_is_listed_shown_and_replayed(shop: Shop) -> None:
    shop.migrate()
    event_id = a_failed_order(shop)
    assert shop.orders.one("SELECT count(*) FROM placed") == 0, "the local rollback has run"

    listed = one(shop.orders.run("dead", "list", "--json", app=False))
    assert list(listed) == [
        "status",
        "ref",
        "group",
        "source",
        "topic",
        "kind",
        "event_type",
        "key",
        "biz_key",
        "attempts",
        "since",
        "reason",
    ]
    assert (listed["status"], listed["ref"], listed["key"]) == ("FAILED", event_id, "k1")
    assert "the limit is" in str(listed["reason"])

    shop.orders.execute('UPDATE shield_outbox SET payload = \'{"number": 1, "quantity": 1}\'')
    replayed = shop.orders.run("dead", "replay", event_id, "--yes", app=False)
    assert replayed.status == 0
    assert replayed.out == f"event {event_id} in the outbox is queued again\n"
    assert "its local rollback, if it has one, has run already" in replayed.err

    assert shop.orders.ok("relay", "--once", "--json").data["published"] == 1
    assert shop.orders.ok("dead", "list", "--json").data == []
    assert shop.orders.ok("dead", "list").out == "no dead letters\n"


def test_payload_is_masked_until_requested(shop: Shop) -> None:
    shop.migrate()
    event_id = a_failed_order(shop)

    text = shop.orders.ok("dead", "show", event_id)
    assert "bytes, --payload shows them)" in text.out
    masked = shop.orders.ok("dead", "show", event_id, "--json")
    assert SECRET not in text.out + text.err + masked.out + masked.err
    assert one(masked)["payload"] is None

    shown = one(shop.orders.run("dead", "show", event_id, "--payload", "--json"))
    assert json.loads(str(shown["payload"]))["note"].startswith(SECRET)
    assert shown["payload_bytes"] == one(masked)["payload_bytes"] == len(str(shown["payload"]))
    assert SECRET in shop.orders.ok("dead", "show", event_id, "--payload").out


def test_failed_event_is_replayed_only_after_confirmation(shop: Shop) -> None:
    shop.migrate()
    event_id = a_failed_order(shop)

    for answer in ("n\n", ""):
        result = shop.orders.run("dead", "replay", event_id, answer=answer)
        assert result.status == 1
        assert result.err.endswith(
            "Replay? [y/N] Aborted: nothing was replayed (use --yes to skip the prompt)\n"
        )
        assert result.out == ""
    assert shop.orders.outbox() == {"FAILED": 1}
    assert shop.orders.rows("SELECT * FROM shield_audit") == []

    assert shop.orders.run("dead", "replay", event_id, answer="y\n").status == 0
    assert shop.orders.outbox() == {"INIT": 1}


def test_replay_warns_of_age_and_of_a_rollback(shop: Shop) -> None:
    shop.migrate()
    event_id = a_failed_order(shop)
    replay = ("dead", "replay", event_id)
    plain = shop.orders.run(*replay, answer="n\n").err
    shop.orders.execute(
        "UPDATE shield_outbox SET unconfirmed = true, created_at = now() - interval '400 days'"
    )
    old = shop.orders.run(*replay, answer="n\n").err
    shop.orders.execute(
        "INSERT INTO shield_inbox (event_id, source, event_type, topic, payload, operation, "
        "event_time, received_at, due_at, status, attempts, settled_at, tx_kind, consumer_group, "
        "causation_id, causation_source) SELECT gen_random_uuid(), 'stock', event_type, topic, "
        "payload, operation, created_at, now(), now(), 'PROCESSED', 1, now(), 'ROLLBACK', "
        "'orders', event_id, source FROM shield_outbox"
    )
    taken_back = shop.orders.run(*replay, answer="n\n").err

    assert "would apply it once more" not in plain
    assert "There is a rollback of it" not in plain + old
    assert "a group may have applied it and purged its row" in old
    assert "There is a rollback of it" in taken_back


def test_replay_of_a_dead_compensation_is_audited(shop: Shop) -> None:
    shop.migrate()
    event_id = a_dead_compensation(shop)
    listed = one(shop.orders.run("dead", "list", "--group", orders_group(shop), "--json"))
    assert (listed["status"], listed["ref"]) == ("DEAD", event_id)
    assert without_site(listed["reason"]) == "ValueError: this order cannot be cancelled"

    told = shop.orders.ok("dead", "list").out.splitlines()
    assert told[0].split()[:2] == ["DEAD", event_id]
    assert told[1].split() == (
        f"orders.placed ROLLBACK, group {orders_group(shop)}, key k3, attempts 1".split()
    )
    assert told[2].strip() == listed["reason"]

    # The command asks for no confirmation: nothing was rolled back locally.
    assert one(shop.orders.run("dead", "replay", event_id, "--json"))["ref"] == event_id
    (who, action, subject, detail) = shop.orders.rows(
        "SELECT who, action, subject, detail FROM shield_audit"
    )[0]
    assert who == f"{getpass.getuser()}@{socket.gethostname()}"
    assert action == "replay"
    assert subject == f"event {event_id} in the inbox of group {orders_group(shop)}"
    assert json.loads(detail)["from"] == "DEAD"

    shop.orders.execute(
        "UPDATE shield_outbox SET payload = replace(payload, 'for ever', 'after all')"
    )
    shop.orders.ok("consume", orders_group(shop), "--once")
    assert shop.orders.rows("SELECT number FROM cancelled") == [(7,)]


def test_replay_may_name_another_user_for_the_audit(shop: Shop) -> None:
    shop.migrate()
    event_id = a_dead_compensation(shop)

    shop.orders.ok("dead", "replay", event_id, "--who", "ann, ticket 12")

    assert shop.orders.one("SELECT who FROM shield_audit") == "ann, ticket 12"


def test_replay_refuses_events_that_are_not_dead_letters(shop: Shop) -> None:
    shop.migrate()
    shop.place([1])
    event_id = str(shop.orders.one("SELECT event_id FROM shield_outbox"))

    result = shop.orders.run("dead", "replay", event_id, "--yes")
    assert result.status == 1
    assert result.err == (
        f"error: event {event_id} in the outbox is INIT: only FAILED events of the outbox and DEAD "
        "ones of an inbox can be replayed, see `shieldtx dead list`\n"
    )
    assert shop.orders.outbox() == {"INIT": 1}
    assert shop.orders.rows("SELECT * FROM shield_audit") == []


def test_unknown_dead_letter_is_one_line(shop: Shop) -> None:
    shop.migrate()
    shop.place([1])
    event_id = str(shop.orders.one("SELECT event_id FROM shield_outbox"))
    for words, problem in (
        (["show", str(uuid4())], "there is no event "),
        (["show", "nonsense"], "'nonsense' is not an event id; see `shieldtx dead list`"),
        (["show", "a/b"], "'a/b': write it as GROUP/TOPIC/PARTITION/OFFSET"),
        (["show", "a/b/c/d"], "'a/b/c/d': write it as GROUP/TOPIC/PARTITION/OFFSET"),
        (["show", "a/b/1/2"], "there is no parked record a/b/1/2 in this database"),
        (["replay", str(uuid4()), "--yes"], "there is no event "),
        (["replay", event_id, "--group", "mail"], "group mail has not received event "),
    ):
        result = shop.orders.run("dead", *words)
        assert (result.status, result.out) == (2, ""), words
        assert result.err.startswith(f"error: {problem}")
        assert result.err.count("\n") == 1


def test_parked_record_is_shown_without_control_characters(shop: Shop) -> None:
    shop.migrate()
    ref = a_parked_record(shop)

    listed = one(shop.stock.run("dead", "list", "--topic", "orders.placed", "--json"))
    in_kafka = f"{shop.prefix}orders.placed.commit"
    assert one(shop.stock.run("dead", "list", "--topic", in_kafka, "--json")) == listed
    assert (listed["status"], listed["partition"]) == ("PARKED", 1)
    # The reference has a digest after the offset, since a recreated topic may reuse the offset.
    assert str(listed["ref"]).startswith(f"{ref}/")
    assert SECRET not in shop.stock.ok("dead", "show", listed["ref"]).out
    assert "ce_specversion: the header is missing" in str(listed["reason"])
    table = shop.stock.ok("dead", "list").out
    assert "PARKED" in table
    assert "\x1b" not in table
    mistyped = shop.stock.run("dead", "list", "--topic", "orders.paid", "--json")
    assert (mistyped.status, mistyped.out) == (2, "")
    assert "(declared: orders.placed" in mistyped.err

    assert SECRET not in shop.stock.ok("dead", "show", ref).out
    assert one(shop.stock.run("dead", "show", ref, "--payload", "--json"))["payload"] == SECRET
    refused = shop.stock.run("dead", "replay", ref)
    assert (refused.status, refused.err) == (1, "")
    assert "stays parked: ce_specversion: the header is missing\n" in refused.out
    without = shop.stock.run("dead", "replay", ref, app=False)
    assert (without.status, without.err) == (1, "")
    assert "has no handlers in this application" in without.out


def test_rollback_is_replayed_when_its_key_is_known(shop: Shop) -> None:
    shop.migrate()
    sender, receiver = "s" * 32, "r" * 32
    shop.place([1], quantity=1000)
    shop.orders.ok("relay", "--once")
    group = shop.stock.environment["SHOP_STOCK_GROUP"]
    shop.stock.ok("consume", group, "--once")
    shop.stock.ok("relay", "--once", SHIELDTX_SIGNING_KEY=sender)
    shop.orders.ok("consume", orders_group(shop), "--once", SHIELDTX_SIGNING_KEY=receiver)
    chosen = ("--status", "PARKED", "--error", "ce_signature", "--kind", "ROLLBACK")

    for keys in ({}, {"SHIELDTX_SIGNING_KEY": receiver}):
        early = shop.orders.run("dead", "replay", *chosen, "--yes", **keys)
        assert early.status == 1
        assert early.out.endswith("replayed: 0, left as they are: 1\n")
    repaired = f"{receiver},{sender}"
    replayed = shop.orders.run(
        "dead", "replay", *chosen, answer="y\n", SHIELDTX_SIGNING_KEY=repaired
    )
    assert replayed.status == 0
    assert "rows to replay: 1, the oldest first\n" in replayed.err
    assert shop.orders.rows("SELECT * FROM shield_parked") == []
    shop.orders.ok("consume", orders_group(shop), "--once", SHIELDTX_SIGNING_KEY=repaired)

    assert shop.orders.rows("SELECT status FROM shield_inbox") == [("PROCESSED",)]
    assert shop.orders.one("SELECT count(*) FROM cancelled") == 1
