"""The exported documents: what they contain, what validates against them, what reads them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired
from uuid import UUID

import jsonschema
import pytest
from pydantic import BaseModel, Field, SecretStr
from referencing import Registry, Resource
from typing_extensions import TypedDict

from shieldtx import Event, Settings, ShieldTx, TxKind
from shieldtx.brokers import signing
from shieldtx.catalog.asyncapi import asyncapi
from shieldtx.catalog.catalog import Catalog, CatalogEntry, Direction
from shieldtx.catalog.compatibility import Compatibility, changes
from shieldtx.catalog.json_schema import json_schema
from shieldtx.catalog.reading import read_catalog
from shieldtx.cli.app_loading import load
from shieldtx.domain.events import Envelope, rollback_of
from shieldtx.errors import ConfigurationError
from tests.support.project import ROOT
from tests.unit.catalog.asyncapi_rules import DOCUMENT


class Colour(Enum):
    RED = "red"


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    owner: Person | None = None


class Person(BaseModel):
    name: str = Field(min_length=1)
    pets: list[Annotated[Cat | Dog, Field(discriminator="kind")]] = []


@dataclass
class Order:
    id: int
    total: Decimal
    colour: Colour
    article: UUID
    person: Person
    pair: tuple[int, str] = (1, "a")
    pieces: Annotated[int, Field(ge=1, lt=100)] = 1
    labels: dict[str, int] = field(default_factory=dict)
    at: datetime | None = None


class Note(TypedDict):
    text: str
    by: NotRequired[str]


ORDER = Order(
    id=1,
    total=Decimal("1.50"),
    colour=Colour.RED,
    article=UUID(int=7),
    person=Person(name="Ada", pets=[Dog(owner=Person(name="Bo")), Cat()]),
    at=datetime(2026, 11, 27, tzinfo=UTC),
)
PAYLOADS: Mapping[str, Any] = {
    "orders.placed": ORDER,
    "notes": {"text": "x"},
    "anything": [1, None, {"a": 1.5}],
    "person": Person(name="Ada"),
}


def a_shop(name: str = "shop", **settings: Any) -> ShieldTx:
    made = ShieldTx(Settings(source=name, database_url="sqlite://", **settings))
    made.declare("orders.placed", payload=Order, version=2)
    made.declare("notes", payload=Note)
    made.declare("anything")
    made.declare("person", payload=Person, topic="orders.placed")
    group = made.consumer("stock")
    group.handles("orders.placed", payload=Order)(lambda session, event: None)
    group.handles_many("parcels.packed", payload=Note, version=3)(lambda session, events: None)
    group.compensates("orders.placed", payload=Order)(lambda session, event: None)
    return made


def resolved(document: Any, reference: str) -> Any:
    found = document
    for step in reference.removeprefix("#/").split("/"):
        found = found[step]
    return found


def references(part: Any) -> Iterator[str]:
    if isinstance(part, Mapping):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        for each in part.values():
            yield from references(each)
    elif isinstance(part, list):
        for each in part:
            yield from references(each)


def check_asyncapi(document: Any) -> None:
    """Check a document against the rules, and that each reference has a target."""
    jsonschema.validate(document, DOCUMENT, cls=jsonschema.Draft7Validator)
    for reference in references(document):
        resolved(document, reference)
    for operation in document["operations"].values():
        for reference in references(operation["messages"]):
            assert reference.startswith(operation["channel"]["$ref"] + "/messages/")


EXAMPLES = (
    "examples.smallest:shop",
    "examples.smallest:warehouse",
    "examples.retail.orders:shield",
    "examples.retail.stock:shield",
    "shop.orders:shield",
    "shop.stock:shield",
)


@pytest.mark.parametrize("name", EXAMPLES)
def test_catalog_of_each_example_is_valid(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHIELDTX_SOURCE", "orders")
    monkeypatch.setenv("SHIELDTX_DATABASE_URL", "sqlite://")
    monkeypatch.syspath_prepend(str(ROOT / "tests/acceptance"))
    catalog = load(name).catalog()
    assert catalog.entries
    check_asyncapi(asyncapi(catalog, release="1"))
    jsonschema.Draft202012Validator.check_schema(json_schema(catalog))


def test_asyncapi_document_has_channels_groups_and_messages() -> None:
    shop = a_shop(topic_prefix="eu.", kafka_group_prefix="eu-")
    document = json.loads(json.dumps(asyncapi(shop.catalog(), release="1.4")))
    check_asyncapi(document)
    assert document["info"] == {"title": "shop", "version": "1.4"}
    assert set(document["channels"]) == set(shop.topics()) - {
        # Nothing is written to the rollback topics of the first two, and nobody reads the others.
        "eu.anything.rollback",
        "eu.notes.rollback",
    }
    assert set(document["operations"]) == {
        "receive.stock.eu.orders.placed.commit",
        "receive.stock.eu.orders.placed.rollback",
        "receive.stock.eu.parcels.packed.commit",
        "send.eu.anything.commit",
        "send.eu.notes.commit",
        "send.eu.orders.placed.commit",
        "send.eu.orders.placed.rollback",
        "send.eu.parcels.packed.rollback",
    }
    receive = document["operations"]["receive.stock.eu.parcels.packed.commit"]
    assert receive["bindings"]["kafka"]["groupId"]["const"] == "eu-stock"
    sent = document["operations"]["send.eu.orders.placed.commit"]
    assert [m["$ref"].rpartition("/")[2] for m in sent["messages"]] == [
        "send.orders.placed",
        "send.person",
    ]


def test_rules_find_a_document_that_breaks_the_specification() -> None:
    for wrong in (
        {"asyncapi": "2.6.0"},
        {"info": {"title": "shop"}},
        {"channels": {"a": {"address": "a"}}},
        {"tags": []},
        {"components": {"messages": {}, "schemas": {"a/b": {}}}},
    ):
        with pytest.raises(jsonschema.ValidationError):
            check_asyncapi(asyncapi(a_shop().catalog(), release="1") | wrong)


@pytest.mark.parametrize("event_type", PAYLOADS)
def test_payload_and_headers_of_an_event_fit_its_message(event_type: str) -> None:
    shop = a_shop()
    document = asyncapi(shop.catalog(), release="1")
    message = document["components"]["messages"][f"send.{event_type}"]
    envelope = shop.outbox.to_envelope(
        Event(type=event_type, payload=PAYLOADS[event_type], key="k", biz_key="b")
    )
    record = signing.encode(envelope, "")
    payload = {"$ref": message["payload"]["$ref"], "components": document["components"]}
    validator = jsonschema.Draft7Validator(payload)
    validator.validate(json.loads(record.value))
    headers = {name: value.decode() for name, value in record.headers}
    jsonschema.validate(
        headers, message["headers"] | {"additionalProperties": False} | _own(message)
    )
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(headers | {"ce_type": "other"}, message["headers"])
    if event_type != "anything":
        with pytest.raises(jsonschema.ValidationError):
            validator.validate({"text": 7, "name": "", "id": "x"})


def _own(message: Any) -> dict[str, Any]:
    """Return the properties of the headers, with the content type, which the message names."""
    return {"properties": message["headers"]["properties"] | {"content-type": True}}


def test_rollback_event_fits_its_message() -> None:
    document = asyncapi(a_shop().catalog(), release="1")
    original = a_shop().outbox.to_envelope(Event(type="orders.placed", payload=ORDER))
    rollback: Envelope = rollback_of(original, source="shop", reason="sold out")
    record = signing.encode(rollback, "", [SecretStr("k" * 32)])
    message = document["components"]["messages"]["send.orders.placed.rollback"]
    schema = resolved(document, message["payload"]["$ref"])
    jsonschema.validate(json.loads(record.value), schema)
    headers = {name: value.decode() for name, value in record.headers}
    jsonschema.validate(
        headers, message["headers"] | {"additionalProperties": False} | _own(message)
    )


@pytest.mark.parametrize("event_type", PAYLOADS)
def test_json_schema_is_found_by_the_uri_of_the_event(event_type: str) -> None:
    shop = a_shop()
    document = json_schema(shop.catalog())
    jsonschema.Draft202012Validator.check_schema(document)
    envelope = shop.outbox.to_envelope(Event(type=event_type, payload=PAYLOADS[event_type]))
    uri = envelope.dataschema or f"urn:shieldtx:{event_type}:1"
    registry = Resource.from_contents(document) @ Registry()
    schema = registry.crawl().contents(uri)
    validator = jsonschema.Draft202012Validator(schema, registry=registry.crawl())
    validator.validate(json.loads(envelope.payload))
    if event_type != "anything":
        with pytest.raises(jsonschema.ValidationError):
            validator.validate({"text": 7, "name": "", "id": "x"})


@pytest.mark.parametrize("document_of", [lambda c: asyncapi(c, release="1"), json_schema])
def test_exported_document_is_read_without_a_change(
    tmp_path: Path, document_of: Callable[[Catalog], Any]
) -> None:
    catalog, path = a_shop().catalog(), tmp_path / "events.json"
    path.write_text(json.dumps(document_of(catalog)))
    read = read_catalog(path)
    assert read.source == "shop"
    assert {e.identity for e in read.entries} <= {e.identity for e in catalog.entries}
    assert len(read.sent()) == len(catalog.sent()) == 4
    for one, other in ((read, catalog), (catalog, read), (read, read)):
        assert changes(one, other, Compatibility.FULL) == []


def test_names_with_dots_do_not_share_a_message() -> None:
    made = ShieldTx(Settings(source="shop", database_url="sqlite://"))
    made.consumer("a.b").handles("c", payload=Note)(lambda session, event: None)
    made.consumer("a").handles("b.c", payload=Person)(lambda session, event: None)
    document = asyncapi(made.catalog(), release="1")
    check_asyncapi(document)
    assert len(document["components"]["messages"]) == 4


def test_payload_type_without_a_json_schema_is_named() -> None:
    made = ShieldTx(Settings(source="shop", database_url="sqlite://"))

    class Odd(BaseModel):
        call: Callable[[], int]

    made.declare("odd", payload=Odd)
    with pytest.raises(ConfigurationError, match=r"payload of event type 'odd' has no JSON Schema"):
        made.catalog()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is not a readable JSON document"),
        ("{", "is not a readable JSON document"),
        ("[]", "is not a document of `shieldtx events export`"),
        ('{"openapi": "3.1.0"}', "is not a document of `shieldtx events export`"),
        ('{"asyncapi": "3.0.0", "info": {"title": "x"}}', "is not a document of"),
        (
            (
                '{"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "a", "$defs": '
                '{"a": {"$id": "b"}}}'
            ),
            "the .id of a names no version",
        ),
    ],
)
def test_file_of_another_kind_is_refused(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "events.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigurationError, match=message) as caught:
        read_catalog(path)
    assert "events.json" in str(caught.value)


def sent(schema: Any, **more: Any) -> CatalogEntry:
    given = {"event_type": "a", "direction": Direction.SEND, "version": 1, "schema": schema}
    return CatalogEntry(**(given | more))


def received(schema: Any, **more: Any) -> CatalogEntry:
    return sent(schema, direction=Direction.RECEIVE, group="stock", **more)


NUMBER, FRACTION, SOME = {"type": "integer"}, {"type": "number"}, {"type": "integer", "minimum": 1}


@pytest.mark.parametrize(
    ("old", "new", "wanted", "expected"),
    [
        (sent(NUMBER), sent(NUMBER), "full", []),
        (sent(NUMBER), sent(FRACTION), "backward", []),
        (sent(NUMBER), sent(FRACTION), "forward", ["number is written, only integer is read (new"]),
        (sent(NUMBER), sent(FRACTION), "full", ["number is written, only integer is read (new"]),
        (sent(FRACTION), sent(NUMBER), "backward", ["only integer is read (old events, new code)"]),
        (sent(FRACTION), sent(NUMBER), "forward", []),
        (received(NUMBER), received(FRACTION), "full", []),
        (received(NUMBER), received(SOME), "forward", ["minimum 1 is read"]),
        (sent(NUMBER), sent(SOME, version=2), "full", ["note version 1 becomes 2"]),
        (sent(NUMBER, version=2), sent(NUMBER), "full", ["version 1 is older than version 2"]),
        (sent(NUMBER), None, "full", ["note is no longer sent"]),
        (received(NUMBER), None, "full", ["is no longer handled"]),
        (received(NUMBER, kind=TxKind.ROLLBACK), None, "full", ["note is no longer handled"]),
        (
            sent(NUMBER, address="a.commit"),
            sent(NUMBER, address="b.commit"),
            "full",
            ["moves from topic a.commit to b.commit"],
        ),
        (sent(NUMBER, address="a.commit"), sent(NUMBER), "full", []),
        (None, sent(NUMBER), "full", []),
    ],
)
def test_change_breaks_or_is_a_note(
    old: CatalogEntry | None, new: CatalogEntry | None, wanted: str, expected: list[str]
) -> None:
    before, after = (Catalog(source="shop", entries=[each] if each else []) for each in (old, new))
    found = changes(before, after, Compatibility(wanted))
    shown = [f"{'' if c.breaks else 'note '}{c.problem}" for c in found]
    assert len(shown) == len(expected)
    assert all(part in line for part, line in zip(expected, shown, strict=True)), shown


def test_document_of_sent_events_ends_no_received_ones() -> None:
    before = Catalog(source="shop", entries=[received(NUMBER), sent(NUMBER)])
    after = Catalog(source="shop", entries=[sent(NUMBER)], only_sent=True)
    assert changes(before, after, Compatibility.FULL) == []
    [change] = changes(before, replace(after, only_sent=False), Compatibility.FULL)
    assert change.problem.startswith("is no longer handled")
