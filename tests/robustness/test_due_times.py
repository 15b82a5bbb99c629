"""Any due time at all: every service reads it back in any time zone, or it is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import HealthCheck, example, find, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, create_engine, select

from shieldtx import Event, EventRefused
from shieldtx.domain import schedule
from shieldtx.store.delayed_events import SqlDelayedEventStore
from shieldtx.store.relay_store import SqlRelayStore
from shieldtx.store.shard_leases import SqlLeaseStore
from tests.support.migrated_databases import MigratedDatabases
from tests.support.write_side_shop import SHARDS, Shop

ZONES = ("Pacific/Kiritimati", "America/Adak")
"""UTC+14 and UTC-10."""
DAY = timedelta(days=1)
LEASE = timedelta(minutes=5)

_OFFSETS = st.timedeltas(-DAY + timedelta(minutes=1), DAY - timedelta(minutes=1)).map(timezone)
_ZONES = _OFFSETS | st.none() | st.timezones()
TIMES = st.one_of(
    st.datetimes(timezones=_ZONES),
    st.datetimes(max_value=datetime(1, 1, 3), timezones=_ZONES),  # noqa: DTZ001  in any zone
    st.datetimes(min_value=datetime(9999, 12, 30), timezones=_ZONES),  # noqa: DTZ001
)
"""Every year from 1 to 9999, the days at both ends as often as all others."""
DUE = st.one_of(
    st.fixed_dictionaries({"at": TIMES}),
    st.fixed_dictionaries({"at": st.sampled_from([schedule.EARLIEST, schedule.LATEST])}),
    st.fixed_dictionaries({"delay": st.timedeltas()}),
)


@pytest.fixture(scope="module")
def shops(databases: MigratedDatabases) -> Iterator[dict[str, Shop]]:
    """One service, whose sessions are in time zones far from UTC."""
    with ExitStack() as closing:
        url = closing.enter_context(databases.database(shards=SHARDS))
        made = {}
        for zone in ZONES:
            made[zone] = Shop(url, migrate=False)
            made[zone].engine.dispose()
            made[zone].engine = _engine_in(zone, url)
            closing.callback(made[zone].close)
        Shop(url, migrate=True).close()
        yield made


def _engine_in(zone: str, url: str) -> Engine:
    return create_engine(url, connect_args={"options": f"-c timezone={zone}"})


def _is_refused(shops: dict[str, Shop], due: dict[str, Any]) -> bool:
    """Write an event that is due then, and one that is due now; read both in each zone."""
    shop = shops[ZONES[0]]
    shop.clear()
    try:
        with shop.session() as session, session.begin():
            shop.outbox.add(session, Event(type="order.placed", key="k"), **due)
    except EventRefused:
        return True
    with shop.session() as session, session.begin():
        shop.outbox.add(session, Event(type="order.placed", key="other"))
    for each in shops.values():
        _expect_readable(each, due)
    return False


def _expect_readable(shop: Shop, due: dict[str, Any]) -> None:
    o = shop.tables.outbox.c
    with shop.engine.connect() as connection:
        [found] = connection.scalars(select(o.due_at).where(o.key == "k"))
        SqlDelayedEventStore(shop.tables).waiting(connection, limit=10)
    if "at" in due:
        # In UTC: where a zone's clock was set, its times equal none of another zone.
        assert found == due["at"].astimezone(UTC)
    SqlLeaseStore(shop.engine, shop.tables).renew(relay="r", lease=LEASE)
    store = SqlRelayStore(shop.engine, shop.tables)
    claimed = {each.envelope.key for each in store.claim(relay="r", limit=10).events}
    assert claimed == ({"k", "other"} if found <= datetime.now(UTC) else {"other"})
    store.withdraw(relay="r", renamed="r")


@given(due=DUE)
@example(due={"at": datetime.min.replace(tzinfo=UTC)})
@example(due={"at": datetime.max.replace(tzinfo=UTC)})
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
def test_due_time_is_refused_or_readable_in_every_zone(
    shops: dict[str, Shop], due: dict[str, Any]
) -> None:
    _is_refused(shops, due)


@pytest.mark.selftest
def test_due_times_detect_a_service_that_accepts_all_of_them(
    shops: dict[str, Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "_check_time", lambda _: None)

    def breaks(due: dict[str, Any]) -> bool:
        try:
            _is_refused(shops, due)
        except Exception:  # noqa: BLE001  whatever a driver raises for a time that it cannot show
            return True
        return False

    assert find(DUE, breaks, settings=settings(max_examples=1000, database=None))
