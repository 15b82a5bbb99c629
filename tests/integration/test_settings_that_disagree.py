"""Two processes with different values of a setting: a documented outcome, or a refusal.

No case is silent. The event is delivered, or it waits or ends with a reason in `shieldtx status`,
or the process with the wrong value is refused. docs/how-to/connections.md has the table.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy.orm import Session

from shieldtx import Event, Refused, ShieldTx
from tests.support.service import QUICK, App, Service, make_topics

KEY, OTHER_KEY = ("0" * 64, "1" * 64)
SIGNED = {"signing_key": SecretStr(KEY)}
NUMBER_OF_SHARDS = "SHIELDTX_SHARDS is 16, but shield_outbox was made for 8 shards"


@dataclass(frozen=True, kw_only=True, slots=True)
class Disagreement:
    """A process whose setting differs from the other processes, and the outcome."""

    process: str
    """The writer, relay or consumer of the upstream service."""
    settings: dict[str, Any]
    usual: dict[str, Any] = field(default_factory=dict)
    """The settings of all other processes that differ from the defaults."""
    refused: str = ""
    """A part of the error that refuses the process."""
    outbox: str = "PROCESSED"
    """The status of the event; empty if it is not written."""
    reason: str = ""
    """A part of the reason why the event waits or failed, or why the rollback is parked."""
    is_undone: bool = True
    """Whether the event is published, refused by the other service, and compensated."""

    def __str__(self) -> str:
        return f"{self.process}: {', '.join(self.settings)}"


TABLE = (
    Disagreement(
        process="writer",
        settings={"shards": 16},
        refused=NUMBER_OF_SHARDS,
        outbox="",
        is_undone=False,
    ),
    Disagreement(
        process="relay",
        settings={"shards": 16},
        refused=NUMBER_OF_SHARDS,
        outbox="INIT",
        is_undone=False,
    ),
    Disagreement(
        process="writer",
        settings={"database_schema": "other"},
        refused="other.shield_outbox does not exist",
        outbox="",
        is_undone=False,
    ),
    Disagreement(
        process="relay",
        settings={"database_schema": "other"},
        refused='"other.shield_shard" does not exist',
        outbox="INIT",
        is_undone=False,
    ),
    Disagreement(
        process="consumer",
        settings={"database_schema": "other"},
        refused='"other.shield_pause" does not exist',
        is_undone=False,
    ),
    Disagreement(process="writer", settings={"source": "billing"}, outbox="INIT", is_undone=False),
    Disagreement(process="relay", settings={"source": "billing"}, outbox="INIT", is_undone=False),
    Disagreement(process="consumer", settings={"source": "billing"}),
    Disagreement(process="writer", settings={"topic_prefix": "stage."}),
    Disagreement(
        process="relay",
        settings={"topic_prefix": "stage."},
        outbox="FAILED",
        reason="topic stage.orders.placed.commit does not exist",
        is_undone=False,
    ),
    Disagreement(
        process="consumer",
        settings={"topic_prefix": "stage."},
        refused="no topic stage.orders.placed.rollback",
        is_undone=False,
    ),
    Disagreement(
        process="consumer",
        settings={"signing_key": SecretStr(OTHER_KEY)},
        usual=SIGNED,
        reason="signature",
        is_undone=False,
    ),
    Disagreement(
        process="consumer",
        settings={"signing_key": SecretStr(f"{OTHER_KEY},{KEY}")},
        usual=SIGNED,
    ),
    Disagreement(process="consumer", settings=SIGNED, reason="signature", is_undone=False),
    Disagreement(process="relay", settings=SIGNED),
    Disagreement(process="relay", settings={"relay_lease": timedelta(seconds=60)}),
    Disagreement(process="relay", settings={"max_payload_bytes": 1}),
    Disagreement(process="relay", settings={"relay_batch_bytes": 1}),
    Disagreement(process="consumer", settings={"retention_inbox": timedelta(days=1)}),
    Disagreement(process="relay", settings={"retention_outbox": timedelta(hours=1)}),
)


class Chain:
    """A service and another service that refuses its event, with one process configured
    differently.
    """

    def __init__(self, row: Disagreement, make_service: Callable[..., Service]) -> None:
        self._row = row
        self.orders = make_service("orders", **row.usual)
        self.stock = make_service("stock", **row.usual)
        self.undone: list[str | None] = []
        self._declare(self.orders.app)
        changed = self.orders.app.settings.model_copy(update=row.settings)
        broker = self.orders.app.broker
        self.other = App(changed, engine=self.orders.engine, broker=broker)
        self._declare(self.other)

        @self.stock.app.consumer("stock").handles("orders.placed", retry=QUICK)
        def refuse(_session: Session, _event: Event) -> None:
            raise Refused("out of stock")

        make_topics(self.orders, self.stock)

    def _declare(self, app: ShieldTx) -> None:
        app.declare("orders.placed", retry=QUICK)

        @app.consumer("orders").compensates("orders.placed", retry=QUICK)
        def undo(_session: Session, event: Event) -> None:
            self.undone.append(event.key)

    def of(self, process: str) -> ShieldTx:
        """Return the application of a process of the upstream service."""
        return self.other if process == self._row.process else self.orders.app

    def run(self) -> None:
        """Write the event, and let each process run its passes.

        Raises the error that refuses a process.
        """
        with self.orders.transaction() as session:
            self.of("writer").outbox.add(session, Event(type="orders.placed", key="k"))
        for make in (
            self.of("relay").build_relay,
            lambda: self.stock.app.build_consumer("stock"),
            self.stock.app.build_relay,
            lambda: self.of("consumer").build_consumer("orders"),
        ):
            with closing(make()) as worker:
                for _ in range(QUICK.max_attempts + 1):
                    worker.run_once()


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_a_setting_that_disagrees_has_a_known_outcome(
    make_service: Callable[..., Service], row: Disagreement
) -> None:
    chain = Chain(row, make_service)
    if row.refused:
        with pytest.raises(Exception, match=row.refused):
            chain.run()
    else:
        chain.run()

    found = chain.orders.rows("SELECT status, last_error FROM shield_outbox")
    parked = chain.orders.rows("SELECT reason FROM shield_parked")
    assert [status for status, _ in found] == ([row.outbox] if row.outbox else [])
    assert chain.undone == (["k"] if row.is_undone else [])
    reasons = [reason for _, reason in found if reason] + [reason for (reason,) in parked]
    assert bool(reasons) is bool(row.reason)
    assert row.reason in "".join(reasons)
    chain.other.close()


def test_events_of_another_source_are_counted_for_an_operator(
    make_service: Callable[..., Service],
) -> None:
    [row] = [each for each in TABLE if str(each) == "writer: source"]
    chain = Chain(row, make_service)
    chain.run()
    assert chain.orders.app.stores.limits().other_sources("orders") == {"billing": 1}
    chain.other.close()
