"""The relay on a real PostgreSQL: claims, leases, order, outages, failures."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.exc import OperationalError, ProgrammingError
from sqlalchemy.orm import Session

from shieldtx import Event, RetryPolicy
from shieldtx.ports.broker import DeliveryOutcome, Record
from shieldtx.ports.relay import Claim, RelayStore
from shieldtx.relay.relay import Relay
from tests.conftest import Eventually, threads_named
from tests.support.log_records import logged
from tests.support.service import QUICK, Service, Wire, answer, drain, effect, make_topics

Make = Callable[..., Service]
LATER = RetryPolicy(first=timedelta(hours=1), longest=timedelta(hours=1), jitter=0)


@pytest.fixture
def service(make_service: Make) -> Service:
    service = make_service("orders")
    service.app.declare("things.happened", retry=QUICK)
    service.app.declare("things.waited", retry=LATER)
    make_topics(service)
    return service


def write(service: Service, *keys: str | None, type: str = "things.happened", **more: Any) -> None:
    with service.transaction() as session:
        for number, key in enumerate(keys):
            service.app.outbox.add(session, Event(type=type, key=key, payload=number), **more)


def keys_of(records: list[Record]) -> list[str]:
    return [(record.key or b"").decode() for record in records]


def assert_sent_as_written(service: Service, wire: Wire) -> None:
    written = service.rows("SELECT event_id FROM shield_outbox ORDER BY seq")
    sent = [dict(record.headers)["ce_id"].decode() for record in wire.published]
    assert sent == [str(event_id) for (event_id,) in written]


def fail_to_claim(relay: Relay, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a pass whose claim fails as `store` does."""
    with monkeypatch.context() as cut:
        cut.setattr(relay._in_flight, "_store", store)
        with pytest.raises(OperationalError):
            relay.run_once()


def test_a_pass_claims_publishes_and_settles(service: Service, wire: Wire) -> None:
    write(service, "a", "b", "c")
    done = service.relay().run_once()
    assert (done.claimed, done.published, done.more) == (3, 3, True)
    assert sorted(keys_of(wire.published)) == ["a", "b", "c"]
    assert service.outbox() == {"PROCESSED": 3}
    assert service.rows("SELECT DISTINCT attempts, lease_token FROM shield_outbox") == [(1, None)]


def test_the_first_pass_leases_the_shards_it_claims_from(service: Service) -> None:
    write(service, "a")
    relay = service.app.build_relay()
    assert not relay.shards
    assert relay.run_once().claimed == 1
    assert len(relay.shards) == 8


def test_nothing_is_claimed_without_a_lease(service: Service) -> None:
    write(service, "a")
    owner, other = service.relay("owner"), service.app.build_relay("other")
    assert other.run_once().claimed == 0
    assert owner.run_once().claimed == 1


def test_rows_of_a_key_are_sent_in_the_order_of_writing(service: Service, wire: Wire) -> None:
    for _ in range(10):
        write(service, "a", "b", "a")
    relay = service.relay()
    drain(relay)
    for key in (b"a", b"b"):
        ids = [dict(r.headers)["ce_id"] for r in wire.published if r.key == key]
        written = service.rows(
            "SELECT event_id FROM shield_outbox WHERE key = :key ORDER BY seq", key=key.decode()
        )
        assert [i.decode() for i in ids] == [str(i) for (i,) in written]


def test_no_transaction_is_open_while_publishing(service: Service, wire: Wire) -> None:
    seen: list[int] = []

    def count_open() -> None:
        rows = service.rows(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND state LIKE 'idle in transaction%'"
        )
        seen.append(rows[0][0])

    wire.before_publish = count_open
    write(service, "a")
    service.relay().run_once()
    assert seen == [0]


def test_two_relays_share_the_shards_and_their_rows(make_service: Make, wire: Wire) -> None:
    service = make_service("orders", shards=8)
    service.app.declare("things.happened")
    make_topics(service)
    one, two = service.app.build_relay("one"), service.app.build_relay("two")
    assert len(one.renew().shards) == 8
    assert two.renew().shards == frozenset()  # no shard is free yet
    assert len(one.renew().surplus) == 4
    assert len(two.renew().shards) == 4
    assert len(one.renew().shards) == 4
    write(service, *(f"key-{n}" for n in range(100)))
    first, second = one.run_once(), two.run_once()
    assert first.published > 0
    assert second.published > 0
    assert first.published + second.published == 100
    assert len(wire.published) == 100


def test_shards_of_a_dead_relay_are_taken_over_after_its_lease(
    make_service: Make, wire: Wire, eventually: Callable[..., None]
) -> None:
    service = make_service("orders", relay_lease=4.0, relay_send_timeout=0.5)
    service.app.declare("things.happened")
    make_topics(service)
    write(service, *(f"key-{n}" for n in range(20)))
    dead = service.relay("dead")
    wire.fate = _die
    with pytest.raises(SystemExit):
        dead.run_once()
    assert service.outbox() == {"PROCESSING": 20}
    wire.fate = lambda record: None

    heir = service.relay("heir")
    assert heir.run_once().claimed == 0  # the lease still protects them
    eventually(lambda: len(heir.renew().shards) == 8, "the heir owns the shards")
    drain(heir)
    assert service.outbox() == {"PROCESSED": 20}
    assert service.rows("SELECT DISTINCT attempts FROM shield_outbox") == [(2,)]


def test_a_zombie_writes_nothing_back_after_a_takeover(
    make_service: Make, wire: Wire, eventually: Callable[..., None]
) -> None:
    service = make_service("orders", relay_lease=1.0, relay_send_timeout=0.5)
    service.app.declare("things.happened")
    make_topics(service)
    write(service, "a", "b")
    zombie, heir = service.relay("zombie"), service.app.build_relay("heir")

    def sleep_through_the_takeover() -> None:
        wire.before_publish = lambda: None
        eventually(lambda: len(heir.renew().shards) == 8, "the heir owns the shards")
        heir.run_once()

    wire.before_publish = sleep_through_the_takeover
    done = zombie.run_once()
    assert (done.claimed, done.lost) == (2, 2)
    assert service.outbox() == {"PROCESSED": 2}
    assert len(wire.published) == 4  # duplicates on the topic, which inboxes detect


def test_outage_releases_rows_without_using_an_attempt(service: Service, wire: Wire) -> None:
    write(service, "a", "b")
    relay = service.relay()
    wire.fate = lambda record: answer(DeliveryOutcome.UNSENT, "broker is unreachable")
    done = relay.run_once()
    assert (done.released, done.outage, done.more) == (2, "broker is unreachable", False)
    rows = service.rows("SELECT status, attempts, unconfirmed, last_error FROM shield_outbox")
    assert rows == [("INIT", 0, False, "broker is unreachable")] * 2


def test_relay_pauses_after_an_outage_and_then_tries_one_event(
    service: Service, wire: Wire, eventually: Callable[..., None]
) -> None:
    write(service, "a", "b", "c")
    relay = service.relay()
    wire.fate = lambda record: answer(DeliveryOutcome.UNSENT)
    relay.run_once()
    assert relay.run_once().outage == "paused"
    wire.fate = lambda record: None
    passes: list[int] = []
    eventually(lambda: passes.append(relay.run_once().claimed) or sum(passes) == 3, "drained")
    assert [claimed for claimed in passes if claimed] == [1, 2]


def test_batch_deferred_for_lack_of_time_does_not_end_an_outage(
    service: Service, wire: Wire, eventually: Callable[..., None]
) -> None:
    write(service, "a", "b", "c")
    relay = service.relay()
    claimed: list[int] = []
    for outcome in (DeliveryOutcome.UNSENT, DeliveryOutcome.DEFERRED, DeliveryOutcome.UNSENT):
        wire.fate = lambda record, outcome=outcome: answer(outcome)
        eventually(lambda: claimed.append(relay.run_once().claimed) or claimed[-1], "a claim")
    assert [number for number in claimed if number] == [3, 1, 1]


def test_an_ambiguous_send_is_repeated_and_marked(service: Service, wire: Wire) -> None:
    write(service, "a")
    relay = service.relay()
    wire.fate = lambda record: answer(DeliveryOutcome.UNCONFIRMED, "timed out")
    wire.lose_answers = True
    assert relay.run_once().released == 1
    rows = service.rows("SELECT status, attempts, unconfirmed FROM shield_outbox")
    assert rows == [("INIT", 0, True)]


def test_a_rejected_event_fails_alone_with_its_local_rollback(service: Service, wire: Wire) -> None:
    service.app.local_rollback("things.happened")(effect("undone"))
    write(service, "a", "poison", "b")
    wire.fate = _poison(DeliveryOutcome.REJECTED)
    done = service.relay().run_once()
    assert (done.published, done.failed) == (2, 1)
    assert service.outbox() == {"PROCESSED": 2, "FAILED": 1}
    assert service.effects("undone") == ["poison"]
    [(reason,)] = service.rows("SELECT last_error FROM shield_outbox WHERE status = 'FAILED'")
    assert "as the test wants it" in reason


def test_event_possibly_sent_by_a_dead_relay_is_not_undone(service: Service, wire: Wire) -> None:
    service.app.local_rollback("things.happened")(effect("undone"))
    write(service, "a")
    wire.fate = _die
    with pytest.raises(SystemExit):
        service.relay("dead").run_once()
    service.execute("UPDATE shield_shard SET lease_until = now()")
    service.execute("UPDATE shield_outbox SET lease_until = now()")
    wire.fate = lambda record: answer(DeliveryOutcome.REJECTED)
    assert service.relay("heir").run_once().failed == 1
    assert service.effects("undone") == []
    [(reason,)] = service.rows("SELECT last_error FROM shield_outbox WHERE status = 'FAILED'")
    assert "may have been delivered" in reason


def test_events_after_a_rejected_one_of_a_key_cause_no_outage(service: Service, wire: Wire) -> None:
    write(service, "a", "a", "b")
    first = service.rows("SELECT event_id FROM shield_outbox ORDER BY seq LIMIT 1")[0][0]

    def fate(record: Record) -> Any:
        if dict(record.headers)["ce_id"] == str(first).encode():
            return answer(DeliveryOutcome.REJECTED)
        return answer(DeliveryOutcome.DEFERRED) if record.key == b"a" else None

    wire.fate = fate
    relay = service.relay()
    done = relay.run_once()
    assert (done.published, done.failed, done.released, done.outage) == (1, 1, 1, "")
    wire.fate = lambda record: None
    assert relay.run_once().published == 1
    assert service.outbox() == {"PROCESSED": 2, "FAILED": 1}


def test_a_local_rollback_that_raises_leaves_the_event_waiting(
    make_service: Make, wire: Wire
) -> None:
    service = make_service("orders")
    service.app.declare("things.happened", retry=LATER)
    make_topics(service)

    @service.app.local_rollback("things.happened")
    def undo(session: Session, event: Event) -> None:
        effect("half undone")(session, event)
        raise RuntimeError("the undo is broken")

    write(service, "poison")
    wire.fate = _poison(DeliveryOutcome.REJECTED)
    done = service.relay().run_once()
    assert (done.failed, done.retried) == (0, 1)
    assert service.outbox() == {"INIT": 1}
    assert service.effects() == []
    [(reason,)] = service.rows("SELECT last_error FROM shield_outbox")
    assert "the undo is broken" in reason


def test_local_rollback_is_withheld_after_an_unconfirmed_send(
    service: Service, wire: Wire, eventually: Callable[..., None]
) -> None:
    service.app.local_rollback("things.happened")(effect("undone"))
    write(service, "poison")
    relay = service.relay()
    wire.fate = _poison(DeliveryOutcome.UNCONFIRMED)
    relay.run_once()
    wire.fate = _poison(DeliveryOutcome.REJECTED)
    eventually(lambda: relay.run_once().failed == 1, "failed permanently")
    assert service.effects() == []
    [(reason,)] = service.rows("SELECT last_error FROM shield_outbox")
    assert "withheld" in reason


def test_refusals_use_up_the_attempts_and_then_fail(service: Service, wire: Wire) -> None:
    write(service, "poison")
    relay = service.relay()
    wire.fate = _poison(DeliveryOutcome.REFUSED)
    assert [relay.run_once().retried for _ in range(2)] == [1, 1]
    assert relay.run_once().failed == 1
    assert service.rows("SELECT status, attempts FROM shield_outbox") == [("FAILED", 3)]


def test_refusals_of_a_batch_are_one_log_line(
    service: Service, wire: Wire, own_log: pytest.LogCaptureFixture
) -> None:
    write(service, "a", "b", "c", type="things.waited")
    relay = service.relay()
    wire.fate = lambda record: answer(DeliveryOutcome.REFUSED, f"nobody may write {record.value!r}")
    with own_log.at_level("WARNING", logger="shieldtx.relay.relay"):
        assert relay.run_once().retried == 3
        logging.getLogger("kafka.cluster").warning("another client looks for its broker")
        assert relay.run_once().claimed == 0
    [record] = own_log.records
    [refused] = logged([record], "events_refused")
    assert refused["count"] == len(refused["event_ids"]) == 3  # type: ignore[arg-type]
    assert refused["event_types"] == ["things.waited"]
    assert str(refused["reason"]).count("nobody may write b'") == 1


def test_waiting_row_blocks_only_the_later_rows_of_its_key(service: Service, wire: Wire) -> None:
    write(service, "poison", type="things.waited")
    relay = service.relay()
    wire.fate = _poison(DeliveryOutcome.REFUSED)
    assert relay.run_once().retried == 1
    wire.fate = lambda record: None
    write(service, "poison", "other")
    drain(relay)
    assert keys_of(wire.published) == ["other"]
    service.execute("UPDATE shield_outbox SET due_at = now() WHERE status = 'INIT'")
    drain(relay)
    assert keys_of(wire.published) == ["other", "poison", "poison"]
    types = [dict(r.headers)["ce_type"] for r in wire.published[1:]]
    assert types == [b"things.waited", b"things.happened"]


def test_two_waiting_rows_of_a_key_keep_their_order(service: Service, wire: Wire) -> None:
    write(service, "poison", "poison", type="things.waited")
    relay = service.relay()
    wire.fate = _poison(DeliveryOutcome.REFUSED)
    assert relay.run_once().retried == 2
    wire.fate = lambda record: None
    service.execute(
        "UPDATE shield_outbox SET due_at = now() WHERE seq = (SELECT max(seq) FROM shield_outbox)"
    )
    assert relay.run_once().claimed == 0
    service.execute("UPDATE shield_outbox SET due_at = now()")
    drain(relay)
    assert [record.value for record in wire.published] == [b"0", b"1"]


def test_a_delayed_event_waits_and_blocks_no_other(service: Service, wire: Wire) -> None:
    write(service, "a", delay=timedelta(hours=1))
    write(service, "a")
    relay = service.relay()
    drain(relay)
    assert service.outbox() == {"INIT": 1, "PROCESSED": 1}
    service.execute("UPDATE shield_outbox SET due_at = now() WHERE status = 'INIT'")
    drain(relay)
    assert service.outbox() == {"PROCESSED": 2}


def test_failed_settlement_is_written_before_the_next_claim(service: Service, wire: Wire) -> None:
    write(service, "a")
    relay = service.relay()
    wire.before_publish = lambda: service.execute("ALTER TABLE shield_outbox RENAME TO away")
    with pytest.raises(Exception, match="shield_outbox"):
        relay.run_once()
    with pytest.raises(Exception, match="shield_outbox"):
        relay.run_once()
    service.execute("ALTER TABLE away RENAME TO shield_outbox")
    done = relay.run_once()
    assert (done.published, done.lost) == (1, 0)
    assert len(wire.published) == 1


def test_a_cut_database_connection_loses_nothing(service: Service, wire: Wire) -> None:
    write(service, "a", "b")
    relay = service.relay()
    wire.before_publish = lambda: _terminate_backends(service)
    with pytest.raises(OperationalError):
        relay.run_once()
    # The next pass settles the rows that were already sent, and sends nothing again.
    assert relay.run_once().published == 2
    assert len(wire.published) == 2
    assert service.outbox() == {"PROCESSED": 2}


def test_a_claim_survives_the_termination_of_its_own_backend(service: Service) -> None:
    write(service, "a")
    relay = service.relay()
    with service.engine.connect() as blocker:
        blocker.execute(text("LOCK TABLE shield_outbox IN EXCLUSIVE MODE"))
        failed: list[BaseException] = []

        def claim() -> None:
            try:
                relay.run_once()
            except OperationalError as error:
                failed.append(error)

        thread = threading.Thread(target=claim)
        thread.start()
        while not _terminate_waiting(service):
            continue
        thread.join(timeout=10)
    assert failed
    assert service.outbox() == {"INIT": 1}
    assert relay.run_once().published == 1


def test_event_of_a_claim_with_a_lost_answer_is_not_overtaken(
    service: Service, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = service.relay()
    write(service, "a")
    fail_to_claim(relay, _LosesAnswers(relay._in_flight._store), monkeypatch)
    write(service, "a")
    assert service.outbox() == {"PROCESSING": 1, "INIT": 1}
    drain(relay)
    assert_sent_as_written(service, wire)
    assert service.rows("SELECT attempts, unconfirmed FROM shield_outbox") == [(1, False)] * 2


def test_an_abandoned_claim_that_arrives_late_leases_nothing(
    service: Service, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = service.relay()
    write(service, "a")
    late = _DelaysClaims(relay._in_flight._store)
    fail_to_claim(relay, late, monkeypatch)
    assert relay.run_once().published == 1
    write(service, "a")
    late.arrive()
    write(service, "a")
    drain(relay)
    assert service.outbox() == {"PROCESSED": 3}
    assert_sent_as_written(service, wire)


def test_renewal_overtaken_by_a_rename_leaves_no_second_relay(service: Service) -> None:
    relay = service.relay("one")
    renew = relay._leases.renew

    def overtaken(**asked: Any) -> Any:
        relay._in_flight.withdraw()
        return renew(**asked)

    with pytest.MonkeyPatch.context() as race:
        race.setattr(relay._leases, "renew", overtaken)
        relay.renew()
    relay.run_once()
    assert len(relay.renew().shards) == 8
    assert service.rows("SELECT relay FROM shield_relay") == [("one+1",)]


def test_late_claim_keeps_no_rows_after_an_overtaken_renewal(
    service: Service, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = service.app.build_relay("one")
    renew = relay._leases.renew
    # The first renewal is the overtaken one, so that it finds free shards.
    relay._renew_at = math.inf
    write(service, "a")
    late = _DelaysClaims(relay._in_flight._store)
    fail_to_claim(relay, late, monkeypatch)

    def overtaken(**asked: Any) -> Any:
        relay._in_flight.withdraw()
        taken = renew(**asked)
        late.arrive()
        assert service.outbox() == {"PROCESSING": 1}
        return taken

    with monkeypatch.context() as race:
        race.setattr(relay._leases, "renew", overtaken)
        relay.renew()
    write(service, "a")
    relay.run_once()
    relay.renew()
    drain(relay)
    assert service.outbox() == {"PROCESSED": 2}
    assert_sent_as_written(service, wire)


def test_a_relay_with_an_ambiguous_claim_keeps_its_shards(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = service.relay("one")
    write(service, "a")
    fail_to_claim(relay, _LosesAnswers(relay._in_flight._store), monkeypatch)
    heir = service.relay("two")
    relay.renew()
    assert heir.renew().shards == frozenset()
    relay.run_once()
    relay.renew()
    assert len(heir.renew().shards) == 4


def test_shards_do_not_change_hands_during_a_claim(service: Service) -> None:
    relay = service.relay("slow")
    heir = service.app.build_relay("heir")
    with service.engine.connect() as claiming:
        claiming.execute(text("SELECT * FROM shield_shard FOR SHARE"))
        service_ended = "UPDATE shield_shard SET lease_until = now() - interval '1 second'"
        with pytest.raises(Exception, match="lock timeout"):
            service.execute(f"SET LOCAL lock_timeout = '100ms'; {service_ended}")
        assert heir.renew().shards == frozenset()
    assert relay.renew().shards


def test_closing_a_relay_frees_its_shards_at_once(service: Service) -> None:
    relay = service.relay("one")
    relay.close()
    assert len(service.relay("two").shards) == 8


def test_a_claim_writes_no_index_entry(service: Service) -> None:
    # Few enough to leave space on their page: there every claim is a heap-only update.
    write(service, *(f"key-{n}" for n in range(8)))
    service.relay("one")._in_flight._store.claim(relay="one", limit=50)
    service.execute("SELECT pg_stat_force_next_flush()")
    [(updates, hot)] = service.rows(
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'shield_outbox'"
    )
    assert (updates, hot) == (8, 8)


def test_a_record_that_cannot_be_encoded_fails_alone(service: Service, wire: Wire) -> None:
    write(service, "a", "b")
    service.execute("UPDATE shield_outbox SET headers = '{\"ce_id\": \"forged\"}' WHERE key = 'a'")
    done = service.relay().run_once()
    assert (done.published, done.failed) == (1, 1)


class _DelaysClaims:
    """An outbox store whose claim executes only after its caller has abandoned it."""

    def __init__(self, store: RelayStore) -> None:
        self._store = store
        self._late: list[dict[str, Any]] = []

    def claim(self, **asked: Any) -> Claim:
        self._late.append(asked)
        raise OperationalError("claim", {}, ConnectionError("timed out"))

    def arrive(self) -> None:
        for asked in self._late:
            self._store.claim(**asked)


class _LosesAnswers:
    """An outbox store whose connection breaks after a claim has been committed."""

    def __init__(self, store: RelayStore) -> None:
        self._store = store

    def claim(self, **asked: Any) -> Claim:
        self._store.claim(**asked)
        raise OperationalError("claim", {}, ConnectionError("cut"))


def _poison(outcome: DeliveryOutcome) -> Callable[[Record], Any]:
    return lambda record: answer(outcome) if record.key == b"poison" else None


def _die(record: Record) -> None:
    raise SystemExit


def _terminate_backends(service: Service) -> None:
    apart = create_engine(service.engine.url, poolclass=NullPool)
    with apart.connect() as connection:
        ended = connection.execute(
            text(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        )
        assert ended.all()


def _terminate_waiting(service: Service) -> bool:
    return bool(
        service.rows(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
    )


@pytest.mark.parametrize("most", [1, 2])
def test_the_least_number_of_bytes_sends_one_event_at_a_time(make_service: Make, most: int) -> None:
    service = make_service("orders", relay_batch_bytes=most)
    service.app.declare("things.happened", retry=QUICK)
    make_topics(service)
    write(service, "a", "b")
    drain(service.relay())
    assert service.outbox() == {"PROCESSED": 2}


def test_a_relay_that_cannot_free_its_shards_ends_its_thread(
    make_service: Make, eventually: Eventually
) -> None:
    service = make_service("orders", relay_batch_size=1)
    service.app.declare("things.happened", retry=QUICK)
    make_topics(service)
    write(service, "a", "b", "c")
    before = threads_named("shieldtx-publish")
    relay = service.relay()
    # With a backlog, the next batch is claimed while the first is published.
    relay.run_once()
    (thread,) = threads_named("shieldtx-publish") - before
    service.execute("DROP TABLE shield_shard")

    with pytest.raises(ProgrammingError):
        relay.close()

    eventually(lambda: not thread.is_alive(), "its thread ends")
