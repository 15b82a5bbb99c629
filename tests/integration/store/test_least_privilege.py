"""What roles may do that write, run workers or read: examples/deploy/grants.sql is enough."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import URL, Engine, create_engine, text
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.orm import Session

from shieldtx import Event, LocalOutcome, Refused, ShieldTx
from shieldtx.ports.repair import RepairAction
from shieldtx.reconcile.repair.listed_rows import ListedRow
from shieldtx.reconcile.verdicts import Verdict
from tests.support.project import ROOT
from tests.support.repair_operator import Operator
from tests.support.repair_scenarios import Pair, listed, owed, repair, rows, strand
from tests.support.service import QUICK, Service, drain, effect, make_topics

GRANTS = ROOT / "examples" / "deploy" / "grants.sql"
HALF_GRANTS = GRANTS.with_name("grants-half-messages.sql")
MOMENT = timedelta(milliseconds=1)
ROLES = ("shop_web", "shop_worker", "shop_reader", "shop_repair")


def test_a_role_that_may_only_insert_can_write_events(
    make_service: Callable[..., Service],
) -> None:
    service = make_service("orders")
    service.app.declare("orders.placed")
    make_topics(service)
    service.execute("DROP ROLE IF EXISTS shop")
    service.execute("CREATE ROLE shop LOGIN PASSWORD 'shop'")
    service.execute("GRANT INSERT ON shield_outbox TO shop")
    engine = create_engine(service.engine.url.set(username="shop", password="shop"))
    try:
        with Session(engine) as session, session.begin():
            service.app.outbox.add(session, Event(type="orders.placed", key="a", biz_key="a"))
        with (
            pytest.raises(ProgrammingError, match="permission denied"),
            engine.connect() as connection,
        ):
            connection.exec_driver_sql("SELECT * FROM shield_outbox")
        relay = service.relay()
        drain(relay)
        assert service.outbox() == {"PROCESSED": 1}
    finally:
        engine.dispose()
        service.execute("DROP OWNED BY shop")
        service.execute("DROP ROLE shop")


def test_the_owner_of_the_tables_may_run_the_grants() -> None:
    lines = GRANTS.read_text().splitlines()
    code = " ".join(line.strip() for line in lines if not line.startswith("--"))
    statements = [each.strip() for each in code.split(";") if each.strip()]
    # Roles are granted by superusers only: psql would stop there.
    assert statements
    assert all(re.match(r"GRANT [A-Z, ]+ ON ", each) for each in statements)


def test_a_role_with_documented_grants_changes_delayed_events(
    make_service: Callable[..., Service],
) -> None:
    service = make_service("orders")
    service.app.declare("orders.placed")
    service.execute("DROP ROLE IF EXISTS shop")
    service.execute("CREATE ROLE shop LOGIN PASSWORD 'shop'")
    service.execute("GRANT SELECT, INSERT, UPDATE ON shield_outbox TO shop")
    service.execute("GRANT INSERT ON shield_audit TO shop")
    try:
        with as_role(service, "shop") as engine, Session(engine) as session, session.begin():
            event = Event(type="orders.placed", biz_key="7")
            event_id = service.app.outbox.add(session, event, delay=timedelta(hours=1))
            assert service.app.delayed.reschedule(session, event_id, delay=timedelta(hours=2))
            assert service.app.delayed.cancel(session, event_id)
        assert service.outbox() == {"DISCARDED": 1}
        assert service.rows("SELECT action FROM shield_audit ORDER BY id") == [
            ("reschedule",),
            ("cancel",),
        ]
    finally:
        service.execute("DROP OWNED BY shop")
        service.execute("DROP ROLE shop")


@pytest.fixture
def service(make_service: Callable[..., Service]) -> Iterator[Service]:
    """A service whose tables are granted as the how-to page does."""
    made = make_service("orders")
    with roles(made):
        made.execute("GRANT INSERT ON effects TO shop_worker")
        yield made


@pytest.fixture
def pair(make_service: Callable[..., Service]) -> Iterator[Pair]:
    """Two services whose tables are granted as the how-to page does."""
    made = Pair(make_service)
    with roles(made.orders, made.stock):
        yield made


@contextmanager
def roles(*services: Service) -> Iterator[None]:
    """Grant the tables of these services as the how-to page does."""
    for role in ROLES:
        services[0].execute(f"DROP ROLE IF EXISTS {role}")
        services[0].execute(f"CREATE ROLE {role} LOGIN PASSWORD 'shop'")
    for service in services:
        service.execute(GRANTS.read_text())
    services[0].execute("GRANT pg_read_all_stats TO shop_reader")
    yield
    for role in ROLES:
        for service in services:
            service.execute(f"DROP OWNED BY {role}")
        services[0].execute(f"DROP ROLE {role}")


@contextmanager
def as_role(service: Service, role: str) -> Iterator[Engine]:
    """Connect as a role."""
    engine = create_engine(service.engine.url.set(username=role, password="shop"))
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def application(service: Service, role: str) -> Iterator[ShieldTx]:
    """The application of the service, whose workers connect as a role."""
    with as_role(service, role) as engine:
        changes = {"trace": True, "retention_outbox": MOMENT, "retention_inbox": MOMENT}
        settings = service.app.settings.model_copy(update=changes)
        app = ShieldTx(settings, engine=engine, broker=service.app.broker)
        app.declare("orders.placed")
        app.barrier("orders.placed")
        app.consumer("stock").handles("orders.placed", retry=QUICK)(reserve)
        app.consumer("refunds").compensates("orders.placed")(effect("compensated"))
        yield app
        app.close()


def reserve(session: Session, event: Event) -> None:
    if event.payload == "refused":
        raise Refused("sold out")
    if event.payload == "failing":
        raise ValueError("fails each time")
    effect("reserved")(session, event)


def test_granted_roles_write_publish_handle_compensate_and_purge(service: Service) -> None:
    with ExitStack() as roles:
        writer = roles.enter_context(as_role(service, "shop_web"))
        with pytest.raises(ProgrammingError, match="permission denied"), writer.connect() as reader:
            reader.execute(text("SELECT payload FROM shield_outbox"))
        app = roles.enter_context(application(service, "shop_worker"))
        service.app.declare("orders.placed")
        with Session(writer) as session, session.begin():
            for payload in ("good", "refused", "failing"):
                event = Event(type="orders.placed", key=payload, payload=payload)
                service.app.outbox.add(session, event)
        app.schema.check()
        app.schema.check_sequences()
        app.broker.topics().create(app.topics(), partitions=1, replication=1)
        with app.half("orders.placed", "good", key="half") as half, Session(app.engine) as session:
            half.guard(session)
            session.commit()
        relay = app.build_relay()
        relay.renew()
        workers = [app.build_consumer(group) for group in ("stock", "refunds")]
        drain(relay, *workers)
        for check_back in app.half_messages.check_backs(stopping=lambda: False):
            check_back.run_once()
        app.half_messages.parking().run_once()
        retention = app.build_retention()
        while retention.run_once().more:
            continue
        assert app.stores.unfinished_rows().count("stock", limit=100) == 0
        relay.close()
        for consumer in workers:
            consumer.close()
    assert sorted(service.effects("reserved")) == ["good", "half"]
    assert sorted(service.effects("compensated")) == ["failing", "refused"]
    assert service.outbox() == {}
    assert service.rows("SELECT count(*) FROM shield_purged") != [(0,)]


@pytest.mark.parametrize(
    ("outcome", "status"), [(LocalOutcome.COMMIT, "INIT"), (LocalOutcome.ROLLBACK, "DISCARDED")]
)
def test_a_granted_writer_prepares_and_ends_half_messages(
    service: Service, outcome: LocalOutcome, status: str
) -> None:
    service.execute(HALF_GRANTS.read_text())
    with (
        application(service, "shop_web") as app,
        app.half("orders.placed", "good", key="a") as half,
        Session(app.engine) as session,
    ):
        half.guard(session)
        if outcome is LocalOutcome.COMMIT:
            session.commit()
        else:
            session.rollback()
            half.rollback()
    assert service.outbox() == {status: 1}


def test_a_granted_reader_reads_and_changes_nothing(service: Service) -> None:
    with application(service, "shop_reader") as app:
        app.schema.check()
        assert app.stores.status().read().outbox.states["INIT"].rows == 0
        with app.engine.connect() as connection:
            assert connection.scalar(text("SELECT pg_has_role('pg_read_all_stats', 'USAGE')"))
            with pytest.raises(ProgrammingError, match="permission denied"):
                connection.execute(text("DELETE FROM shield_outbox"))


def url_of(service: Service, role: str) -> URL:
    return service.engine.url.set(username=role, password="shop")


def test_a_granted_repairer_repairs_a_run(pair: Pair, tmp_path: Path) -> None:
    operator = Operator(pair, tmp_path)
    operator.variables = {
        f"{name}_URL": url_of(service, "shop_repair").render_as_string(hide_password=False)
        for name, service in (("ORDERS", pair.orders), ("STOCK", pair.stock))
    }
    pair.write(3)
    pair.work()
    pair.lose_inbox_rows("stock")
    operator.ran("r1", pair.missing("stock"))

    [repaired] = operator.answers("repair", "r1", "--yes")["repaired"]

    assert (repaired["action"], repaired["done"]) == ("hand over", 3)
    pair.work()
    assert len(pair.stock.effects("stock")) == 3


def sent_again(pair: Pair) -> list[ListedRow]:
    pair.write(1)
    pair.work()
    pair.lose_inbox_rows("stock")
    return pair.absent()


def left_by_a_relay(pair: Pair) -> list[ListedRow]:
    pair.write(1)
    strand(pair, "shield_outbox", "now()")
    return [listed(Verdict.STUCK, sent=sent) for sent in pair.sent()]


def left_by_a_consumer(pair: Pair) -> list[ListedRow]:
    pair.write(1)
    pair.work()
    strand(pair, "shield_inbox", "now()")
    [sent], [received] = pair.sent(), pair.received("stock")
    return [listed(Verdict.STUCK, sent=sent, received=received)]


def failed(pair: Pair) -> list[ListedRow]:
    pair.write(1)
    pair.orders.execute(
        "UPDATE shield_outbox SET status = 'FAILED', settled_at = now(), unconfirmed = true"
    )
    return [listed(Verdict.PARKED, sent=sent) for sent in pair.sent()]


def dead(pair: Pair) -> list[ListedRow]:
    pair.refuse_all(1)
    pair.orders.execute("UPDATE shield_inbox SET status = 'DEAD', compensated_id = NULL")
    [parked, *_] = rows(pair.orders, "SELECT * FROM shield_inbox ORDER BY seq")
    return [listed(Verdict.PARKED, received=parked, group="orders")]


@pytest.mark.parametrize(
    ("action", "found"),
    [
        (RepairAction.PUBLISH_AGAIN, sent_again),
        (RepairAction.RELEASE_EVENT, left_by_a_relay),
        (RepairAction.RELEASE_ATTEMPT, left_by_a_consumer),
        (RepairAction.RAISE_ROLLBACK, lambda pair: owed(pair, 1, "stock")),
        (RepairAction.REPLAY_EVENT, failed),
        (RepairAction.REPLAY_COMPENSATION, dead),
    ],
)
def test_a_granted_repairer_may_take_each_action(
    pair: Pair, action: RepairAction, found: Callable[[Pair], list[ListedRow]]
) -> None:
    listed_rows = found(pair)

    report = repair(
        url_of(pair.orders, "shop_repair"), url_of(pair.stock, "shop_repair"), listed_rows
    )

    assert {each: rows.done for (_, each), rows in report.repaired.items()} == {action: 1}
