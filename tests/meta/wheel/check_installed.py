"""Checks an installed wheel: run by .ci/run with the wheel's interpreter, outside of the checkout.

Migrates two databases, relays and consumes a few events over a real Kafka, and reconciles, with the
installed `shieldtx` alone. With --without-spark, nothing is reconciled, and Spark must not be
installed. Exits with a traceback and status 1 on any failure.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

import shieldtx
from shieldtx import Event, Settings, ShieldTx
from shieldtx.embedded import EmbeddedKafka, EmbeddedPostgres
from shieldtx.embedded.jars import fetch_jdbc_driver, fetch_kafka
from shieldtx.embedded.status_line import status_line

EVENTS = 20
COMMAND = Path(sys.executable).with_name("shieldtx")
COMMAND_S = 180
WITHOUT_SPARK = "--without-spark"
RECONCILE = """
[services.orders]
url = "ORDERS_URL"
[services.stock]
url = "STOCK_URL"
[[services.stock.groups]]
name = "stock"
receives = ["orders.placed"]
"""
SHOP = """
from shieldtx import ShieldTx

shield = ShieldTx.from_env()
shield.declare("orders.placed")
stock = shield.consumer("stock")

@stock.handles("orders.placed")
def reserve(session, event):
    assert event.payload["n"] >= 0
"""


def main() -> None:
    """Run all checks in the working directory, which should be empty."""
    installed = Path(shieldtx.__file__).resolve()
    assert installed.is_relative_to(Path(sys.prefix).resolve()), f"{installed} is not the wheel's"
    with_spark = WITHOUT_SPARK not in sys.argv
    assert (find_spec("pyspark") is not None) == with_spark
    assert entry_points(group="alembic.plugins", name="alembic.autogenerate.shieldtx")
    Path("shop.py").write_text(SHOP)
    with status_line() as show:
        fetch_kafka(progress=show)
    with EmbeddedPostgres() as postgres, EmbeddedKafka() as kafka:
        settings = {}
        for service in ("orders", "stock"):
            postgres.create_database(service)
            settings[service] = {
                "SHIELDTX_APP": "shop:shield",
                "SHIELDTX_SOURCE": service,
                "SHIELDTX_DATABASE_URL": postgres.url(service),
                "SHIELDTX_KAFKA_BOOTSTRAP": kafka.bootstrap,
            }
        check_delivery(settings["orders"], settings["stock"])
        if with_spark:
            check_reconciliation(settings["orders"], settings["stock"])
    print(f"the wheel of shieldtx {version('shieldtx')} does its job from {installed.parent}")


def check_delivery(orders: dict[str, str], stock: dict[str, str]) -> None:
    """Relay some events from the outbox of one service to the inbox of the other."""
    for service in (orders, stock):
        assert run(service, "db", "upgrade")["revision"]
        assert run(service, "db", "check")["fits"]
    assert all(topic["exists"] for topic in run(orders, "topics", "create"))

    write_events(orders)
    assert run(orders, "relay", "--once")["published"] == EVENTS
    assert run(stock, "consume", "stock", "--once")["fresh"] == EVENTS


def check_reconciliation(orders: dict[str, str], stock: dict[str, str]) -> None:
    """Compare the outbox with the inbox."""
    urls = {
        "ORDERS_URL": orders["SHIELDTX_DATABASE_URL"],
        "STOCK_URL": stock["SHIELDTX_DATABASE_URL"],
    }
    Path("reconcile.toml").write_text(RECONCILE)
    options = ("--margin", "0", "--jdbc-jar", str(fetch_jdbc_driver()), "--out", "report")
    found = run(urls, "reconcile", "--config", "reconcile.toml", *options)
    assert found["outcome"] == "CLEAN"
    assert sum(found["totals"].values()) == found["totals"]["MATCHED"] == EVENTS
    assert Path(found["report"]).stat().st_size > 0


def write_events(orders: dict[str, str]) -> None:
    """Add the events in one transaction, as a service does."""
    url = orders["SHIELDTX_DATABASE_URL"]
    app = ShieldTx(Settings(source=orders["SHIELDTX_SOURCE"], database_url=url))
    app.declare("orders.placed")
    with Session(create_engine(url)) as session, session.begin():
        for n in range(EVENTS):
            event = Event(type="orders.placed", key=f"household {n % 3}", payload={"n": n})
            app.outbox.add(session, event)


def run(environment: dict[str, str], *arguments: str) -> Any:
    """Run the installed command with --json and return its parsed output."""
    print(f"$ shieldtx {' '.join(arguments[:2])}", flush=True)
    done = subprocess.run(
        [COMMAND, *arguments, "--json"],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )
    assert done.returncode == 0, f"{arguments} ended with {done.returncode}:\n{done.stderr}"
    return json.loads(done.stdout)


if __name__ == "__main__":
    main()
