"""Customers order and pay, and the bank is killed in every phase of a payment.

`python -m examples.payment [--orders N]` starts PostgreSQL and the bank itself; a broker in memory
replaces Apache Kafka. At the end, the bank's ledger and the shop's orders must agree.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.progress import track
from rich.table import Table
from sqlalchemy import text

from examples.payment.bank import HOST, LIMIT_CENTS, PHASES, Ledger
from examples.payment.shop import Bank, Order, PaymentRefused, Shop
from examples.retail.stage import PROJECT
from shieldtx.embedded import EmbeddedPostgres
from shieldtx.embedded.child_process import ChildProcess
from shieldtx.testing.memory_broker import MemoryBroker

CUSTOMERS = ("Ada", "Bo", "Cleo", "Dov")
PATIENCE_S = 60.0
AT_REST = ("PROCESSED", "DISCARDED")
ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, customer text, cents int, paid_by text)"
STATUS = "SELECT status, count(*) AS rows FROM shield_outbox GROUP BY 1"


class Cashier:
    """Keeps the bank running: restarts it after a kill."""

    def __init__(self, folder: Path, port: int) -> None:
        self._folder = folder
        self._port = port
        self._bank: ChildProcess | None = None
        self.deaths: Counter[str] = Counter()

    def open(self, *, die: str | None = None) -> None:
        """Start the bank; with `die`, it kills itself in that phase of its next payment."""
        self.close()
        how = ["--die", die] if die else []
        self._bank = ChildProcess.start(
            [
                *(sys.executable, "-m", "examples.payment.bank"),
                *("--folder", str(self._folder), "--port", str(self._port), *how),
            ],
            name="bank",
            log=self._folder / "bank.log",
            environment={**os.environ, "PYTHONPATH": str(PROJECT)},
            directory=self._folder,
        )
        ends = time.monotonic() + PATIENCE_S
        while not self._is_open():
            if time.monotonic() > ends:
                raise TimeoutError(f"the bank does not open:\n{self._bank.log_tail()}")
            time.sleep(0.02)

    def has_died(self, phase: str) -> None:
        """Wait for the planned death."""
        assert self._bank is not None
        if not self._bank.wait(PATIENCE_S):
            raise TimeoutError(f"the bank has outlived phase {phase}")
        self.deaths[phase] += 1

    def close(self) -> None:
        """Kill the bank if it runs."""
        if self._bank is not None:
            self._bank.kill()
            self._bank = None

    def _is_open(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((HOST, self._port)) == 0


@contextmanager
def opened(folder: Path) -> Iterator[tuple[Shop, Cashier]]:
    """Start the servers and the bank, and stop them at the end."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    cashier, broker = Cashier(folder, port), MemoryBroker()
    with EmbeddedPostgres() as postgres:
        postgres.create_database("shop")
        shop = Shop(postgres.url("shop"), broker, Bank(port))
        shop.shield.schema.upgrade()
        with shop.shield.engine.begin() as connection:
            connection.execute(text(ORDERS))
        broker.topics().create(shop.shield.topics(), partitions=1, replication=1)
        try:
            yield shop, cashier
        finally:
            cashier.close()
            shop.shield.close()


def sell(shop: Shop, cashier: Cashier, orders: int) -> Counter[str]:
    """Take orders while the bank dies once in each phase; count the results for customers."""
    heard: Counter[str] = Counter()
    draw = random.Random(7)  # noqa: S311  prices
    deaths = {
        (place + 1) * orders // (len(PHASES) + 1): phase for place, phase in enumerate(PHASES)
    }
    cashier.open()
    for number in track(range(orders), description="orders", transient=True):
        phase = deaths.get(number)
        if phase is not None:
            cashier.open(die=phase)
        cents = draw.randrange(100, LIMIT_CENTS * 11 // 10)
        try:
            shop.order(Order(number, draw.choice(CUSTOMERS), cents))
            heard["paid"] += 1
        except PaymentRefused:
            heard["refused"] += 1
        except (OSError, HTTPException):
            heard["no answer"] += 1
        if phase is not None:
            cashier.has_died(phase)
            cashier.open()
    return heard


def settle(shop: Shop) -> None:
    """Do the work of `shieldtx relay` and `shieldtx consume` until no message is open."""
    relay, consumer = shop.shield.build_relay(), shop.shield.build_consumer("dispatch")
    checks = shop.shield.half_messages.check_backs()
    ends = time.monotonic() + PATIENCE_S
    while open_messages(shop) or consumer.run_once().more:
        if time.monotonic() > ends:
            raise TimeoutError(f"still open: {states(shop)}")
        for check in checks:
            check.run_once()
        while relay.run_once().more or consumer.run_once().more:
            continue
        time.sleep(0.05)


def open_messages(shop: Shop) -> int:
    """Return how many messages are neither sent nor discarded."""
    return sum(rows for status, rows in states(shop).items() if status not in AT_REST)


def states(shop: Shop) -> dict[str, int]:
    """Return how many messages are in each state."""
    with shop.shield.engine.connect() as connection:
        return {row.status: row.rows for row in connection.execute(text(STATUS))}


def main() -> int:
    """Return 0 if money and orders agree."""
    parser = argparse.ArgumentParser(prog="python -m examples.payment", description=__doc__)
    parser.add_argument("--orders", type=int, default=200)
    options = parser.parse_args()
    console = Console()
    with TemporaryDirectory() as name, opened(Path(name)) as (shop, cashier):
        heard = sell(shop, cashier, options.orders)
        console.print(f"customers heard: {dict(heard)}", soft_wrap=True)
        console.print(f"the bank died: {dict(cashier.deaths)}", soft_wrap=True)
        console.print(
            f"half messages and others, before the check-backs: {states(shop)}", soft_wrap=True
        )
        settle(shop)
        money, goods = Ledger(Path(name) / "ledger.db").paid(), shop.paid()
        report(console, money, goods, states(shop))
        agree = money == goods and cashier.deaths == Counter(PHASES)
    console.print("[green]money and orders agree[/]" if agree else "[red]they do not agree[/]")
    return 0 if agree else 1


def report(
    console: Console,
    money: dict[str, tuple[str, int]],
    goods: dict[str, tuple[str, int]],
    ended: dict[str, int],
) -> None:
    """Print both sides."""
    table = Table(title=f"in the end: {ended}")
    for column in ("customer", "paid at the bank, cents", "sent off by the shop, cents"):
        table.add_column(column, justify="left" if column == "customer" else "right")
    sides = [[*side.values()] for side in (money, goods)]
    for customer in CUSTOMERS:
        sums = [sum(cents for who, cents in side if who == customer) for side in sides]
        table.add_row(customer, *(f"{each:,}" for each in sums))
    console.print(table)


if __name__ == "__main__":
    logging.getLogger("shieldtx").setLevel(logging.ERROR)  # each retry would be a line
    sys.exit(main())
