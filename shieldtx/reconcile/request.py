"""What a run of the reconciliation is asked to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from shieldtx.errors import ConfigurationError
from shieldtx.reconcile.expectations import ExpectedGroup
from shieldtx.states import TxKind


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceDatabase:
    """A service and the database that holds its outbox and its inbox."""

    name: str
    """The source of its events."""
    url: str = field(repr=False)
    """As SQLAlchemy writes it, password included."""
    schema: str | None = None
    """Of shieldtx's tables; None: the connection's own."""
    retention: timedelta | None = None
    """The shorter of the times for which it keeps settled rows of outbox and inbox; None: it purges
    nothing. Without it, rows that were purged on one side look missing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Flow:
    """The events of one kind that go from one service's outbox to the groups of another."""

    kind: TxKind
    upstream: ServiceDatabase
    downstream: ServiceDatabase


@dataclass(frozen=True, kw_only=True, slots=True)
class ReconcileRequest:
    """Two services to compare, in both directions, and where to write what is found.

    Raises ConfigurationError for a negative margin or row limit.
    """

    upstream: ServiceDatabase
    downstream: ServiceDatabase
    folder: Path
    groups: tuple[ExpectedGroup, ...] | None = None
    """None, or none of a kind: what groups have received so far says what they should receive."""
    margin: timedelta = timedelta(minutes=15)
    """Within which an event is taken to make each of its steps; what is younger is in flight."""
    first_rows: int = 20
    """How many rows of each mismatch the page shows."""
    jdbc_jar: Path | None = None
    """PostgreSQL's JDBC driver; None: Spark fetches it."""
    master: str = "local[2]"
    """Where Spark runs, in Spark's words."""

    def __post_init__(self) -> None:
        if self.margin < timedelta(0):
            raise ConfigurationError(f"the margin is {self.margin}: it cannot be negative")
        if self.first_rows < 0:
            raise ConfigurationError(f"{self.first_rows} rows cannot be shown: choose 0 or more")

    @property
    def flows(self) -> tuple[Flow, Flow]:
        """The events, and the rollbacks that come back."""
        up, down = self.upstream, self.downstream
        return (
            Flow(kind=TxKind.COMMIT, upstream=up, downstream=down),
            Flow(kind=TxKind.ROLLBACK, upstream=down, downstream=up),
        )


_REQUEST = TypeAdapter(ReconcileRequest)


def to_json(request: ReconcileRequest) -> bytes:
    """Encode a request in one line of JSON; it holds passwords."""
    return _REQUEST.dump_json(request)


def from_json(line: str | bytes) -> ReconcileRequest:
    """Decode what `to_json` has made; raises ConfigurationError, which repeats no value of it."""
    try:
        return _REQUEST.validate_json(line)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, problem['loc'])) or 'all of it'}: {problem['msg']}"
            for problem in error.errors(include_input=False, include_url=False)
        )
        raise ConfigurationError(f"the request cannot be read: {problems}") from None
