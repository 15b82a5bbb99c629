"""The payment service: its answers do not always match its payments.

`PUT /payments/ID` makes a payment, once for each id. `POST /payments/ID/settle` asks for its
outcome and fixes it: a payment that has not been made by then is void, and is refused when it comes
late. A check-back needs this, as it needs a barrier for a local transaction in a database.

`python -m examples.payment.bank --folder F --port P [--die PHASE]` serves until it is killed, or
kills itself in that phase of the next payment.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

PHASES: Final = ("received", "booked", "committed", "answered")
"""Phases of a payment: received, in a transaction, transaction committed, answered."""

PAID, VOID, REFUSED = "PAID", "VOID", "REFUSED"
LIMIT_CENTS: Final = 50_000
"""Maximum of one payment; the bank refuses higher ones."""
SLOW_S: Final = 1.0
"""Longer than the shop waits for an answer."""

HOST: Final = "127.0.0.1"


class Ledger:
    """The payments on disk, each with its outcome; every call is a separate transaction."""

    def __init__(self, file: Path) -> None:
        self._file = file
        with self._connect() as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS payments "
                "(id TEXT PRIMARY KEY, customer TEXT, cents INTEGER, state TEXT NOT NULL)"
            )

    def pay(self, payment_id: str, customer: str, cents: int, booked: Callable[[], None]) -> str:
        """Make a payment unless it has an outcome already; return its outcome."""
        with self._connect() as connection:
            connection.execute("BEGIN IMMEDIATE")
            state = PAID if cents <= LIMIT_CENTS else REFUSED
            connection.execute(
                "INSERT INTO payments VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (payment_id, customer, cents, state),
            )
            booked()
            return self._state(connection, payment_id)

    def settle(self, payment_id: str) -> str:
        """Void a payment that has not been made; return its outcome."""
        with self._connect() as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(
                "INSERT INTO payments VALUES (?, NULL, NULL, ?) ON CONFLICT DO NOTHING",
                (payment_id, VOID),
            )
            return self._state(connection, payment_id)

    def paid(self) -> dict[str, tuple[str, int]]:
        """Return customer and amount of all payments that were made, by id."""
        with self._connect() as connection:
            rows = connection.execute(
                "SELECT id, customer, cents FROM payments WHERE state = ?", (PAID,)
            )
            return {payment_id: (customer, cents) for payment_id, customer, cents in rows}

    @staticmethod
    def _state(connection: sqlite3.Connection, payment_id: str) -> str:
        row = connection.execute("SELECT state FROM payments WHERE id = ?", (payment_id,))
        return str(row.fetchone()[0])

    def _connect(self) -> _Transaction:
        return _Transaction(self._file)


class _Transaction:
    """A connection for one transaction."""

    def __init__(self, file: Path) -> None:
        self._connection = sqlite3.connect(file, isolation_level=None, timeout=10)

    def __enter__(self) -> sqlite3.Connection:
        self._connection.execute("PRAGMA synchronous = FULL")
        return self._connection

    def __exit__(self, kind: object, *_: object) -> None:
        if self._connection.in_transaction:
            self._connection.execute("COMMIT" if kind is None else "ROLLBACK")
        self._connection.close()


@dataclass(frozen=True, kw_only=True, slots=True)
class Mood:
    """How the bank treats a payment; the payment's id determines it."""

    is_slow: bool
    fails: bool
    loses_the_answer: bool

    @classmethod
    def of(cls, payment_id: str) -> Mood:
        """Of sixteen payments, one is slow, one fails before it is made, one loses its answer."""
        last = payment_id[-1]
        return cls(is_slow=last == "a", fails=last == "b", loses_the_answer=last == "c")


GOOD: Final = Mood(is_slow=False, fails=False, loses_the_answer=False)
"""For payments in which the bank dies."""


class Desk(BaseHTTPRequestHandler):
    """Answers requests."""

    ledger: Ledger
    die: str | None = None

    def do_PUT(self) -> None:
        """Make a payment."""
        payment_id, asked = self.path.split("/")[2], self._body()
        mood = GOOD if self.die else Mood.of(payment_id)
        self._reach("received")
        if mood.fails:
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": "out of paper"})
            return
        state = self.ledger.pay(
            payment_id, asked["customer"], asked["cents"], lambda: self._reach("booked")
        )
        self._reach("committed")
        if mood.is_slow:
            time.sleep(SLOW_S)
        if mood.loses_the_answer:
            self.close_connection = True
            return
        self._answer(HTTPStatus.OK if state == PAID else HTTPStatus.CONFLICT, {"state": state})
        self._reach("answered")

    def do_POST(self) -> None:
        """Answer with the outcome of a payment."""
        payment_id = self.path.split("/")[2]
        self._body()
        self._answer(HTTPStatus.OK, {"state": self.ledger.settle(payment_id)})

    def log_message(self, *_: Any) -> None:
        """Log nothing: the shop logs the results."""

    def _reach(self, phase: str) -> None:
        if self.die == phase:
            os.kill(os.getpid(), signal.SIGKILL)

    def _body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")

    def _answer(self, status: HTTPStatus, body: dict[str, str]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()


def main() -> None:
    """Serve requests."""
    parser = argparse.ArgumentParser(prog="python -m examples.payment.bank", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--die", choices=PHASES)
    options = parser.parse_args()
    Desk.ledger, Desk.die = Ledger(options.folder / "ledger.db"), options.die
    with ThreadingHTTPServer((HOST, options.port), Desk) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
