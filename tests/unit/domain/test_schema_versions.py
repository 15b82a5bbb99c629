"""Versions of payload schemas, and the upcasters between them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter
from typing_extensions import TypedDict

from shieldtx import new_event_id
from shieldtx.domain.event_types import EventTypeRegistry
from shieldtx.domain.events import Envelope
from shieldtx.domain.payloads import payload_type
from shieldtx.domain.schema_versions import LATEST, Upcasters, dataschema_of, version_of
from shieldtx.errors import (
    ConfigurationError,
    HandlerError,
    PayloadRefused,
    UnknownSchemaVersion,
    UpcastFailed,
)

TYPE = "bookings.made"
ANY: TypeAdapter[Any] = payload_type(None, of=TYPE)


def envelope(payload: str = '{"room":"7"}', *, version: int | str | None = None) -> Envelope:
    uri = dataschema_of(TYPE, version) if isinstance(version, int) else version
    return Envelope(
        id=new_event_id(),
        type=TYPE,
        source="desk",
        topic=TYPE,
        payload=payload,
        time=datetime.now(UTC),
        dataschema=uri,
    )


def steps(*versions: int) -> Upcasters:
    """Return upcasters that append the version they make."""
    made = Upcasters()
    for version in versions:

        def add(payload: Any, to: int = version + 1) -> Any:
            return payload | {"path": [*payload.get("path", []), to]}

        made.declare(TYPE, version, add)
    return made


@pytest.mark.parametrize("version", [1, 2, 37, LATEST])
def test_version_is_read_from_the_uri_that_names_it(version: int) -> None:
    assert version_of(dataschema_of(TYPE, version), TYPE) == version
    assert version_of(f"https://schemas.example.com/v1/{TYPE}/{version}", TYPE) == version


@pytest.mark.parametrize(
    "uri",
    [
        "https://schemas.example.com/bookings.made",
        "https://schemas.example.com/bookings.made/v2",
        "https://schemas.example.com/bookings.made/2/",
        "https://schemas.example.com/bookings.made/-2",
        "https://schemas.example.com/bookings.made/٢",
        f"urn:shieldtx:{TYPE}:0",
        f"urn:shieldtx:{TYPE}:{LATEST + 1}",
        f"urn:shieldtx:{TYPE}:{'9' * 5000}",
        "urn:shieldtx:bookings.made.late:2",
        f"{TYPE}2",
        "2",
        ":",
        "",
    ],
)
def test_uri_of_another_form_names_no_version(uri: str) -> None:
    assert version_of(uri, TYPE) is None


def test_event_without_a_schema_has_the_first_version() -> None:
    assert version_of(None, TYPE) == 1


def test_older_payload_passes_each_upcaster_in_order() -> None:
    upcasters = steps(2, 1, 3)
    assert upcasters.read(ANY, envelope(), None) == {"room": "7", "path": [2, 3, 4]}
    assert upcasters.read(ANY, envelope(version=3), 4) == {"room": "7", "path": [4]}
    assert upcasters.read(ANY, envelope(version=2), 3) == {"room": "7", "path": [3]}
    assert upcasters.read(ANY, envelope(version=4), 4) == {"room": "7"}


def test_envelope_is_not_changed_by_an_upcaster() -> None:
    upcasters = Upcasters()
    upcasters.declare(TYPE, 1, lambda payload: payload.update(room="8") or payload)
    written = envelope()
    before = tuple(written)
    assert upcasters.read(ANY, written, 2) == {"room": "8"}
    assert upcasters.read(ANY, written, 2) == {"room": "8"}
    assert tuple(written) == before


@dataclass
class Booking:
    room: int
    currency: str
    made: datetime
    price: Decimal = Decimal(0)


class Model(BaseModel):
    room: int
    currency: str
    made: datetime


class Typed(TypedDict):
    room: int
    currency: str
    made: datetime


@pytest.mark.parametrize("type_", [Booking, Model, Typed])
def test_upcast_payload_has_the_type_that_its_reader_declares(type_: Any) -> None:
    upcasters = Upcasters()
    made = datetime(2026, 11, 27, tzinfo=UTC)

    @lambda function: upcasters.declare(TYPE, 1, function)
    def with_currency(payload: dict[str, Any]) -> dict[str, Any]:
        # Values of Python are written as the write side would write them.
        return payload | {"currency": "EUR", "made": made, "price": Decimal("1.50")}

    payload = upcasters.read(payload_type(type_, of=TYPE), envelope(), 2)
    values = payload if isinstance(payload, dict) else vars(payload)
    assert (values["room"], values["currency"], values["made"]) == (7, "EUR", made)
    assert values.get("price", Decimal("1.50")) == Decimal("1.50")


@pytest.mark.parametrize(
    ("found", "wanted", "message"),
    [
        (3, 2, r"has version 3; this release reads 2. Deploy a release"),
        (1, 3, r"has version 1; this release reads 3. Declare upcasters from version 1 on"),
        (None, 3, r"has no schema, which counts as 1; .* Declare upcasters from version 1 on"),
        ("https://example.com/secret", 2, r"schema URI of 26 characters, .* its? producer must"),
    ],
)
def test_version_that_no_upcaster_reads_is_named(found: Any, wanted: int, message: str) -> None:
    with pytest.raises(UnknownSchemaVersion, match=f"(?i){message}") as caught:
        steps(2).read(ANY, envelope(version=found), wanted)
    assert "secret" not in str(caught.value)


def test_reader_without_a_version_refuses_a_newer_payload() -> None:
    with pytest.raises(UnknownSchemaVersion):
        Upcasters().read(ANY, envelope(version=2), None)


def test_event_without_a_schema_is_not_read_as_a_later_version() -> None:
    with pytest.raises(UnknownSchemaVersion, match="has no schema, which counts as 1"):
        Upcasters().read(ANY, envelope(), 3)


def test_foreign_schema_is_read_where_no_version_is_declared() -> None:
    foreign = envelope(version="https://example.com/schemas/booking.json")
    assert Upcasters().read(ANY, foreign, None) == {"room": "7"}


def test_misfit_without_upcasters_is_the_event_s_fault() -> None:
    with pytest.raises(PayloadRefused, match=r"payload\.currency"):
        Upcasters().read(payload_type(Booking, of=TYPE), envelope(), None)


def fails(payload: Any) -> Any:
    raise LookupError(payload["room"])


def forgets_to_return(payload: Any) -> Any:
    payload["currency"] = "EUR"


def returns_a_misfit(payload: Any) -> Any:
    return payload | {"room": 7, "currency": {"secret": 7}, "made": "2026-11-27T00:00:00Z"}


def returns_an_object(_: Any) -> Any:
    return {"room": object()}


def returns_nan(_: Any) -> Any:
    return {"room": float("nan")}


def returns_a_coroutine(_: Any) -> Any:
    async def later() -> None: ...

    return later()


@pytest.mark.parametrize(
    ("upcaster", "message"),
    [
        (fails, r"fails, the upcaster of 'bookings.made' from version 1, raised LookupError$"),
        (forgets_to_return, r"returned None: return the payload of the next version"),
        (returns_a_misfit, r"does not fit version 2 after its upcasters from version 1.*currency"),
        (returns_an_object, r"returned a dict that cannot be written as JSON"),
        (returns_nan, r"(cannot be written as JSON|does not fit)"),
        (returns_a_coroutine, r"returned a coroutine, whose code has not run"),
    ],
)
def test_defect_of_an_upcaster_is_named_without_values(upcaster: Any, message: str) -> None:
    upcasters = Upcasters()
    upcasters.declare(TYPE, 1, upcaster)
    with pytest.raises(HandlerError, match=message) as caught:
        upcasters.read(payload_type(Booking, of=TYPE), envelope('{"room":"7 secret"}'), 2)
    assert "secret" not in str(caught.value)
    assert isinstance(caught.value, UpcastFailed) or upcaster is returns_a_coroutine


def test_upcaster_of_a_null_payload_may_return_none() -> None:
    upcasters = Upcasters()
    upcasters.declare(TYPE, 1, lambda payload: payload)
    assert upcasters.read(ANY, envelope("null"), 2) is None


async def asynchronous(payload: Any) -> Any:
    return payload


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, dict), r"version 0 must be a number"),
        ((None, dict), r"name the version that it reads"),
        ((True, lambda p: p), r"version True must be a number"),
        (("1", lambda p: p), r"version '1' must be a number"),
        ((LATEST + 1, lambda p: p), r"must be a number"),
        ((1, asynchronous), r"coroutine function"),
        ((1, lambda: None), r"cannot be called as upcaster\(payload\)"),
        ((1, Booking), r"is a class"),
        ((5, lambda p: p), r"version 5 has two upcasters"),
    ],
)
def test_upcaster_that_cannot_work_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        steps(5).declare(TYPE, *arguments)


def test_gap_between_upcasters_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"read as version 5, and version 3 has no upcast"):
        steps(2, 4).check_chain(TYPE, 5)
    steps(2, 3, 4).check_chain(TYPE, 5)
    steps(2, 3, 4).check_chain(TYPE, 3)
    Upcasters().check_chain(TYPE, 7)


@pytest.mark.parametrize("version", [None, 1])
def test_type_that_is_older_than_its_upcasters_is_refused(version: int | None) -> None:
    earlier, later = EventTypeRegistry(), EventTypeRegistry()
    earlier.declare_upcaster(TYPE, 1, lambda payload: payload)
    with pytest.raises(ConfigurationError, match=r"has an upcaster to version 2.*version=2"):
        earlier.declare(TYPE, version=version)
    later.declare(TYPE, version=version)
    with pytest.raises(ConfigurationError, match=r"has an upcaster to version 2.*version=2"):
        later.declare_upcaster(TYPE, 1, lambda payload: payload)


def test_declared_version_names_the_schema_of_its_events() -> None:
    event_types = EventTypeRegistry()
    assert event_types.declare("plain").dataschema is None
    assert event_types.declare(TYPE, version=2).dataschema == "urn:shieldtx:bookings.made:2"
    with pytest.raises(ConfigurationError, match=r"event type 'x': version 0 must be a number"):
        event_types.declare("x", version=0)
