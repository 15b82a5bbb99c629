"""What a run of the reconciliation is asked to do."""

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


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceDatabase:
    """A service and the database that holds its outbox and its inbox."""

    name: str
    """The source of its events."""
    url: str = field(repr=False)
    """As SQLAlchemy writes it, password included."""
    replica_url: str | None = field(default=None, repr=False)
    """Of a replica of it, from which rows are read; its clock is still asked of `url`."""
    schema: str | None = None
    """Of shieldtx's tables; None: the connection's own."""
    retention: timedelta | None = None
    """The shorter of the times for which it keeps settled rows of outbox and inbox; None: it purges
    nothing. Without it, rows that were purged on one side look missing."""
    groups: tuple[ExpectedGroup, ...] | None = None
    """None, or none of a kind: what groups have received so far says what they should receive."""
    others: Others = field(default_factory=Others)
    former_groups: tuple[FormerGroup, ...] = ()
    """Groups of which the past does not say any more what they should receive."""
    parallel_topics: tuple[str, ...] = ()
    """Logical topics on which it sends the same types for good, for different groups."""
    other_sources: tuple[str, ...] = ()
    """Sources that take no part in the reconciliation: of events in the outbox, and of what its
    groups have received."""

    @property
    def member(self) -> Member:
        """The service as far as expectations go."""
        return Member(
            name=self.name,
            groups=self.groups,
            others=self.others,
            former_groups=self.former_groups,
            parallel_topics=self.parallel_topics,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerAccess:
    """The Kafka cluster whose topics are read, in the words of its client."""

    bootstrap: str
    topic_prefix: str = ""
    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str | None = None
    sasl_username: str | None = None
    sasl_password: str | None = field(default=None, repr=False)
    ssl_cafile: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """Which events a run looks at; left as it is: all that are kept.

    Raises ConfigurationError for a window that is empty or has no time zone.
    """

    moved_since: Mapping[str, datetime] = field(default_factory=dict)
    """By service: settled rows older than that were in order in an earlier run."""
    written_since: datetime | None = None
    written_until: datetime | None = None
    """Excluded itself."""

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
        """Whether no event is left out."""
        return not (self.moved_since or self.written_since or self.written_until)


EVERYTHING = Selection()

MOST_ROWS = 1_000
"""Of each mismatch of each pair, on a page; all are in files besides."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReconcileRequest:
    """Services to compare, each with each, and where to write what is found.

    Raises ConfigurationError for services without or with the same name, for a negative margin or
    row limit.
    """

    services: tuple[ServiceDatabase, ...]
    folder: Path
    run_id: str = ""
    """By which the run is known afterwards; empty: it is not stored."""
    selection: Selection = EVERYTHING
    full_because: tuple[str, ...] = ()
    """Why it looks at everything though it was not asked to, in sentences."""
    observed: Observed | None = None
    """What the run met from whose watermarks this one starts: where this one meets something else,
    it looks at everything. None: nothing is held against it."""
    past: Past = field(default_factory=Past)
    """What earlier runs have seen of the same services in the same databases."""
    topics_before: ObservedTopics = field(default_factory=ObservedTopics)
    """What earlier runs have read, whether or not outboxes have rows of it left."""
    judged_until: tuple[JudgedUntil, ...] = ()
    """Up to when earlier runs have judged."""
    remarks: tuple[str, ...] = ()
    """What of the configuration should be set otherwise, by what is known before the run."""
    broker: BrokerAccess | None = None
    """None: topics are not read."""
    margin: timedelta = timedelta(minutes=15)
    """Within which an event is taken to make each of its steps; what is younger is in flight."""
    statement_timeout: timedelta = timedelta(hours=1)
    """After which a database gives up a statement of the run."""
    push_down: bool = True
    """Let the databases digest what is in order, and read the rest alone."""
    first_rows: int = 20
    """How many rows of each mismatch the page shows."""
    show_payloads: bool = False
    """Show the payloads of those rows; otherwise they are masked."""
    jdbc_jar: Path | None = None
    """PostgreSQL's JDBC driver; None: the pinned one is fetched, and its checksum verified."""
    master: str = "local[2]"
    """Where Spark runs, in Spark's words."""

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
        """The services as far as expectations go."""
        return [service.member for service in self.services]


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
