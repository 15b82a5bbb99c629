"""The options that select dead letters, given-up events and parked records."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

import typer

from shieldtx.cli.times import EXAMPLE, time_of
from shieldtx.domain.states import InboxStatus, OutboxStatus, TxKind
from shieldtx.errors import ConfigurationError
from shieldtx.store.statements.row_filters import RowFilter


class Waiting(StrEnum):
    """The states in which a row waits for a replay or a discard."""

    FAILED = "FAILED"
    DEAD = "DEAD"
    PARKED = "PARKED"


class Refusable(StrEnum):
    """The state in which an event can be refused by an operator."""

    DEAD = "DEAD"


class Listed(StrEnum):
    """The states that a list shows."""

    FAILED = "FAILED"
    DEAD = "DEAD"
    PARKED = "PARKED"
    UNRESOLVED = "UNRESOLVED"
    MAX_RECONSUMED = "MAX_RECONSUMED"


LETTERS: Final[dict[str, OutboxStatus | InboxStatus]] = {
    Listed.FAILED: OutboxStatus.FAILED,
    Listed.UNRESOLVED: OutboxStatus.UNRESOLVED,
    Listed.DEAD: InboxStatus.DEAD,
}
"""The states of rows in outbox and inbox that wait for an operator."""

Status = Annotated[
    Waiting | None,
    typer.Option("--status", help="Filter by state.", case_sensitive=False),
]
RefusableStatus = Annotated[
    Refusable | None,
    typer.Option("--status", help="Filter by state.", case_sensitive=False),
]
ListedStatus = Annotated[
    Listed | None,
    typer.Option("--status", help="Filter by state.", case_sensitive=False),
]
EventType = Annotated[str | None, typer.Option("--type", help="Filter by event type.")]
Kind = Annotated[
    TxKind | None, typer.Option("--kind", help="Filter by kind.", case_sensitive=False)
]
Key = Annotated[str | None, typer.Option("--key", help="Filter by key.")]
BizKey = Annotated[str | None, typer.Option("--biz-key", help="Filter by business key.")]
ErrorPart = Annotated[
    str | None, typer.Option("--error", help="Filter by a part of the reason, case-sensitive.")
]
Since = Annotated[
    str | None,
    typer.Option(
        "--since", help=f"Filter by the earliest time of the state, with its time zone: {EXAMPLE}."
    ),
]
MOST_LISTED: Final = 1000
MOST_CHANGED: Final = 100_000
Limit = Annotated[
    int, typer.Option(min=1, max=MOST_LISTED, help="Maximum number of rows of each kind.")
]
ChangeLimit = Annotated[
    int,
    typer.Option(min=1, max=MOST_CHANGED, help="Maximum number of rows that the filters select."),
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """What an operator has selected; None: any."""

    status: Listed | Waiting | None = None
    group: str | None = None
    topic: str | None = None
    rows: RowFilter = RowFilter()  # noqa: RUF009  it is frozen


def selection_of(
    *,
    status: Listed | Waiting | None,
    group: str | None,
    topic: str | None,
    event_type: str | None,
    kind: TxKind | None,
    key: str | None,
    biz_key: str | None,
    error: str | None,
    since: str | None,
) -> Selection:
    """Return the selection of a command line; raises ConfigurationError for a bad time."""
    rows = RowFilter(
        event_type=event_type,
        kind=kind,
        key=key,
        biz_key=biz_key,
        error=error,
        since=None if since is None else time_of("--since", since),
    )
    return Selection(status=status, group=group, topic=topic, rows=rows)


def require_one_choice(refs: list[str] | None, selection: Selection) -> None:
    """Raise ConfigurationError unless rows are named, or selected by their state and filters."""
    has_filter = selection.topic is not None or selection.rows != RowFilter()
    if bool(refs) == (selection.status is not None) or (refs and has_filter):
        raise ConfigurationError(
            "name rows by their ids, or choose them by --status, and by --group, --topic and other "
            "filters if you like: without --status, no row is chosen"
        )
