"""When the workers of a process count, and what is shown of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from prometheus_client import CollectorRegistry

from shieldtx import ConfigurationError, Settings, ShieldTx
from shieldtx.consumer.consumer import Consumer
from shieldtx.relay.relay import Relay
from shieldtx.testing.memory_broker import MemoryBroker

Made: TypeAlias = Callable[..., ShieldTx]


@pytest.fixture
def an_app(tmp_path: Path) -> Iterator[Made]:
    """A function that makes an application with a migrated database in a file."""
    with ExitStack() as closing:

        def made(**settings: Any) -> ShieldTx:
            url = f"sqlite:///{tmp_path}/orders.db"
            app = ShieldTx(
                Settings(source="orders", database_url=url, **settings), broker=MemoryBroker()
            )
            closing.callback(app.close)
            app.schema.upgrade()
            return app

        yield made


def test_workers_count_after_a_registry_has_the_metrics(an_app: Made) -> None:
    app = an_app()
    registry = counting(app)
    app.build_relay().close()
    assert registry.get_sample_value("shieldtx_relay_shards", {"service": "orders"}) == 0.0
    labels = {"service": "orders", "version": app_version()}
    assert registry.get_sample_value("shieldtx_build_info", labels) == 1.0


def app_version() -> str:
    import shieldtx

    return shieldtx.__version__


def test_metrics_that_come_too_late_are_refused(an_app: Made) -> None:
    app = an_app()
    app.build_relay().close()
    with pytest.raises(ConfigurationError, match="register it before the workers start"):
        CollectorRegistry().register(app.metrics)  # type: ignore[arg-type]


def test_setting_alone_needs_no_package_and_counts_nothing(
    an_app: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`relay --once` has the settings of the relay, and opens no endpoints."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    app = an_app(http="127.0.0.1:0")
    app.build_relay().close()
    with pytest.raises(ConfigurationError, match="register it before the workers start"):
        app.metrics.describe()


def counting(app: ShieldTx) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=True)
    registry.register(app.metrics)  # type: ignore[arg-type]
    return registry


def test_relay_and_consumers_share_the_metrics_of_the_process(an_app: Made) -> None:
    app = an_app()
    counting(app)
    app.declare("orders.placed")
    for name in ("stock", "mail"):
        app.consumer(name).handles("orders.placed")(lambda session, event: None)
    workers: list[Relay | Consumer] = [
        app.build_relay(),
        app.build_consumer("stock"),
        app.build_consumer("mail"),
    ]
    found = {metric.name for metric in app.metrics.collect()}
    assert {"shieldtx_relay_events", "shieldtx_consumer_attempts"} <= found
    for worker in workers:
        worker.close()


def test_consumer_shows_no_metrics_of_a_relay(an_app: Made) -> None:
    app = an_app()
    counting(app)
    app.declare("orders.placed")
    app.consumer("stock").handles("orders.placed")(lambda session, event: None)
    app.build_consumer("stock").close()
    found = {metric.name for metric in app.metrics.collect()}
    assert "shieldtx_consumer_attempts" in found
    assert "shieldtx_relay_shards" not in found


def test_second_application_in_a_registry_is_refused(an_app: Made) -> None:
    registry = counting(an_app())
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(an_app().metrics)  # type: ignore[arg-type]


def test_files_of_several_processes_are_refused(
    an_app: Made, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    with pytest.raises(ConfigurationError, match="PROMETHEUS_MULTIPROC_DIR is set"):
        counting(an_app())
