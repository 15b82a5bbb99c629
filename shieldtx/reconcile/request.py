"""The request of a reconciliation run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from shieldtx.errors import ConfigurationError
from shieldtx.reconcile.expectations import ExpectedGroup, FormerGroup, Member, Others
from shieldtx.reconcile.judged_spans import JudgedUntil
from shieldtx.reconcile.observed import Observed, ObservedTopics, Past
from shieldtx.reconcile.run_context import RunContext


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceDatabase:
    """A service and the database that holds its outbox and its inbox."""

    name: str
    """The source of the service's events."""
    url: str = field(repr=False)
    """In SQLAlchemy's notation, with the password."""
    replica_url: str | None = field(default=None, repr=False)
    """A replica from which rows are read; the clock is still read from `url`."""
    schema: str | None = None
    """The schema of shieldtx's tables; None: the default schema of the connection."""
    retention: timedelta | None = None
    """The shorter retention of settled rows, of outbox and inbox; None: no purge. Without this
    value, rows that one side has purged look missing."""
    groups: tuple[ExpectedGroup, ...] | None = None
    """None, or no group of a kind: past receipts of the groups define what they should receive."""
    others: Others = field(default_factory=Others)
    former_groups: tuple[FormerGroup, ...] = ()
    """Groups whose past receipts no longer define what they should receive."""
    parallel_topics: tuple[str, ...] = ()
    """Logical topics on which the service permanently sends the same types, for different groups.
    """
    other_sources: tuple[str, ...] = ()
    """Sources that take no part in the reconciliation: of events in the outbox, and of events that
    its groups have received."""

    @property
    def member(self) -> Member:
        """The service as far as expectations need it."""
        return Member(
            name=self.name,
            groups=self.groups,
            others=self.others,
            former_groups=self.former_groups,
            parallel_topics=self.parallel_topics,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerAccess:
    """The Kafka cluster whose topics are read, with the settings of its client."""

    bootstrap: str
    topic_prefix: str = ""
    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str | None = None
    sasl_username: str | None = None
    sasl_password: str | None = field(default=None, repr=False)
    ssl_cafile: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """The events that a run judges; by default all that are kept."""

    moved_since: Mapping[str, datetime] = field(default_factory=dict)
    """By service: an earlier run found settled rows older than this time in order."""
    written_since: datetime | None = None
    written_until: datetime | None = None
    """Exclusive."""

    def __post_init__(self) -> None:
        for when in (self.written_since, self.written_until, *self.moved_since.values()):
            if when is not None and when.tzinfo is None:
                raise ConfigurationError(f"{when} has no time zone: write it as {when}+00:00")
        if self.written_since and self.written_until and self.written_until <= self.written_since:
            raise ConfigurationError(
                f"the window ends at {self.written_until}, not after it begins: "
                f"{self.written_since}"
            )

    @property
    def is_everything(self) -> bool:
        """Return whether the selection includes all events."""
        return not (self.moved_since or self.written_since or self.written_until)


EVERYTHING = Selection()

MOST_ROWS = 1_000
"""The limit of rows on a page, for each mismatch of each pair; files in the folder have all rows.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReconcileRequest:
    """Services to compare pairwise, and the folder for the results.

    Raises ConfigurationError for an empty list of services, for a repeated name, for a negative
    margin and for an invalid row limit.
    """

    services: tuple[ServiceDatabase, ...]
    folder: Path
    run_id: str = ""
    """The id under which the run is stored; empty: the run is not stored."""
    context: RunContext = field(default_factory=RunContext)
    selection: Selection = EVERYTHING
    full_because: tuple[str, ...] = ()
    """Why the run judges all events although the request was not for all, as sentences."""
    observed: Observed | None = None
    """The observations of the run from whose watermarks this run starts. If this run finds a
    difference, it judges all events. None: no comparison."""
    past: Past = field(default_factory=Past)
    """Observations of earlier runs, of the same services in the same databases."""
    topics_before: ObservedTopics = field(default_factory=ObservedTopics)
    """The topics that earlier runs have read, whether or not outboxes still have rows of them."""
    judged_until: tuple[JudgedUntil, ...] = ()
    """The times up to which earlier runs have judged."""
    remarks: tuple[str, ...] = ()
    """Sentences about settings that should be changed, as far as known before the run."""
    broker: BrokerAccess | None = None
    """None: topics are not read."""
    margin: timedelta = timedelta(minutes=15)
    """The assumed maximum time of each step of an event; younger events are in flight."""
    statement_timeout: timedelta = timedelta(hours=1)
    """The time after which a database cancels a statement of the run."""
    push_down: bool = True
    """The databases compute digests of rows in order, and the run reads only the other rows."""
    first_rows: int = 20
    """The number of rows of each mismatch on the page."""
    show_payloads: bool = False
    """Show the payloads and keys of the rows on the page; otherwise they are masked."""
    jdbc_jar: Path | None = None
    """PostgreSQL's JDBC driver; None: the pinned driver is downloaded, and its checksum verified.
    """
    master: str = "local[2]"
    """Spark's master URL."""

    def __post_init__(self) -> None:
        names = Counter(service.name for service in self.services)
        if not names:
            raise ConfigurationError("there is no service to reconcile: name one at least")
        for name, number in names.items():
            if number > 1:
                raise ConfigurationError(f"{number} services are called {name!r}: name each once")
        if self.margin < timedelta(0):
            raise ConfigurationError(f"the margin is {self.margin}: it cannot be negative")
        if self.statement_timeout <= timedelta(0):
            raise ConfigurationError("the time limit of a statement must be above 0 seconds")
        if not 0 <= self.first_rows <= MOST_ROWS:
            raise ConfigurationError(
                f"{self.first_rows} rows of each mismatch cannot be shown on a page: choose 0 to "
                f"{MOST_ROWS:,}; a run leaves all of them as files in its folder"
            )

    @property
    def members(self) -> list[Member]:
        """The services as far as expectations need them."""
        return [service.member for service in self.services]


_REQUEST = TypeAdapter(ReconcileRequest)


def to_json(request: ReconcileRequest) -> bytes:
    """Encode a request in one line of JSON, which contains passwords."""
    return _REQUEST.dump_json(request)


def from_json(line: str | bytes) -> ReconcileRequest:
    """Decode the JSON of `to_json`; raises ConfigurationError, without any value of the request."""
    try:
        return _REQUEST.validate_json(line)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, problem['loc'])) or 'all of it'}: {problem['msg']}"
            for problem in error.errors(include_input=False, include_url=False)
        )
        raise ConfigurationError(f"the request cannot be read: {problems}") from None
