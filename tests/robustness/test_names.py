"""Names with injections: refused where they are given, or plain names to the database."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, create_engine, inspect, text
from sqlalchemy.orm import Session

from shieldtx import Event, Settings, ShieldTx
from shieldtx.consumer.handlers import ConsumerGroup
from shieldtx.domain.event_types import EventTypeRegistry
from shieldtx.embedded import EmbeddedPostgres
from shieldtx.errors import ConfigurationError
from shieldtx.store.notify import Listener
from shieldtx.store.schema import Schema
from shieldtx.store.schema_settings import schema_name
from shieldtx.testing.memory_broker import MemoryBroker
from tests.robustness import strategies
from tests.support.service import drain, effect

PHASES = (Phase.explicit, Phase.generate, Phase.shrink)
URL = "postgresql+psycopg://127.0.0.1:1/none"

# Reserved names in SQL and PostgreSQL, which pass any check of quotes.
reserved = st.sampled_from(
    [
        *("user", "select", "public", "pg_catalog", "pg_temp", "default", "none", "table", "all"),
        *("current_user", "null", "x" * 63, "x" * 64, "_", "__", "a1", "1a", "\u00e4", "User"),
    ]
)
any_text = strategies.texts | reserved
near_names = st.from_regex(r"\A[A-Za-z0-9._-]{0,5}[^A-Za-z0-9._-]{0,1}\n?\Z")


@pytest.fixture(scope="module")
def engine(postgres: EmbeddedPostgres) -> Iterator[Engine]:
    name = f"test_{uuid.uuid4().hex}"
    postgres.create_database(name)
    engine = create_engine(postgres.url(name))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE shield_outbox (canary int)"))
    yield engine
    engine.dispose()
    postgres.drop_database(name)


def refusals(name: str) -> list[str]:
    """Return the refusal of each place that takes a name; "" where the place accepts it."""

    def said(make: Callable[[], object]) -> str:
        try:
            make()
        except (ConfigurationError, ValueError) as error:
            return str(error)
        return ""

    return [
        said(lambda: Settings(source=name, database_url=URL)),
        said(lambda: EventTypeRegistry().declare(name)),
        said(lambda: EventTypeRegistry().declare("t", topic=name)),
        said(lambda: ConsumerGroup(name, EventTypeRegistry())),
        said(lambda: ConsumerGroup("g", EventTypeRegistry()).handles(name)),
        said(lambda: ConsumerGroup("g", EventTypeRegistry()).handles("t", topic=name)),
        said(lambda: ConsumerGroup("g", EventTypeRegistry()).compensates(name)),
    ]


@given(any_text | near_names)
@settings(phases=PHASES, max_examples=300)
@example("orders\n")
@example("orders\x00")
@example(".")
@example("..")
@example("")
@example("x" * 201)
def test_name_of_source_type_topic_or_group_is_valid_or_refused(name: str) -> None:
    is_name = 0 < len(name) <= 200 and name[0] not in "._-" and name.isascii()
    is_name = is_name and all(c.isalnum() or c in "._-" for c in name)
    for refusal in refusals(name):
        assert bool(refusal) is not is_name
        if refusal:
            assert "cannot be used" in refusal


@given(any_text | near_names)
@settings(phases=PHASES, max_examples=300)
@example("shop\n")
def test_prefix_is_part_of_a_topic_name_or_refused(prefix: str) -> None:
    is_part = len(prefix) <= 40 and prefix.isascii()
    is_part = is_part and all(c.isalnum() or c in "._-" for c in prefix)
    try:
        taken = Settings(source="shop", database_url=URL, topic_prefix=prefix).topic_prefix
    except ConfigurationError:
        assert not is_part
    else:
        assert is_part
        assert taken == prefix


@given(any_text)
@settings(phases=PHASES, max_examples=300)
def test_schema_needs_no_quotes_or_is_refused(name: str) -> None:
    plain = name.isascii() and name.isidentifier() and name == name.lower() and len(name) <= 63
    if plain and not name.startswith("pg_"):
        assert schema_name(name) == name
    else:
        with pytest.raises(ConfigurationError) as refused:
            schema_name(name)
        assert repr(name) in str(refused.value)


@pytest.mark.parametrize("name", ["user", "select", "_", "public", "x" * 63, "information_schema2"])
def test_accepted_schema_works_even_if_it_is_an_sql_keyword(
    engine: Engine, postgres: EmbeddedPostgres, name: str
) -> None:
    if name == "public":
        with engine.begin() as connection:
            connection.execute(text("DROP TABLE IF EXISTS public.shield_outbox"))
    app = ShieldTx(
        Settings(
            source="shop",
            database_url=engine.url.render_as_string(hide_password=False),
            database_schema=name,
            shards=1,
        ),
        engine=engine,
        broker=MemoryBroker(),
    )
    app.schema.upgrade()
    app.schema.check()
    app.declare("orders.placed")
    app.consumer("stock").handles("orders.placed")(lambda session, event: None)
    app.broker.topics().create(app.topics(), partitions=1, replication=1)
    woken: list[bool] = []
    listener = Listener(engine, name, lambda: woken.append(True))
    listener.start()
    with Session(engine) as session, session.begin():
        app.outbox.add(session, Event(type="orders.placed", key="'; DROP TABLE shield_outbox; --"))
    relay, consumer = app.build_relay("'; DROP TABLE shield_relay; --"), app.build_consumer("stock")
    drain(relay, consumer)
    relay.close()
    listener.close()
    app.close()
    with engine.connect() as connection:
        settled = f"SELECT count(*) FROM \"{name}\".shield_inbox WHERE status = 'PROCESSED'"
        assert connection.scalar(text(settled)) == 1
    assert woken


@pytest.mark.parametrize("injection", strategies.INJECTIONS)
def test_no_other_schema_reaches_the_database(engine: Engine, injection: str) -> None:
    before = inspect(engine).get_schema_names()
    with pytest.raises(ConfigurationError, match="not a name for a schema"):
        Schema(engine, schema=injection).upgrade()
    assert inspect(engine).get_schema_names() == before


def test_texts_with_injections_reach_the_effect_unchanged(make_service) -> None:
    service = make_service("orders", MemoryBroker())
    service.app.declare("orders.placed")
    service.app.consumer("stock").handles("orders.placed")(effect("reserved"))
    service.app.broker.topics().create(service.app.topics(), partitions=1, replication=1)
    storable = [text for text in strategies.INJECTIONS if len(text.encode()) <= 512]
    with service.transaction() as session:
        for hostile in storable:
            event = Event(
                type="orders.placed",
                key=hostile,
                biz_key=hostile,
                payload={hostile: hostile},
                headers={"h": hostile},
            )
            service.app.outbox.add(session, event)
    drain(service.relay(), service.app.build_consumer("stock"))
    assert sorted(service.effects()) == sorted(storable)
    rows = service.rows("SELECT key, biz_key, headers::json ->> 'h' FROM shield_inbox")
    assert sorted(rows) == sorted((text, text, text) for text in storable)
    assert service.outbox() == {"PROCESSED": len(storable)}
