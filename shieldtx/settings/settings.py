"""Settings, read from the environment as `SHIELDTX_*`."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Annotated, Literal, Self

from pydantic import (
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict
from sqlalchemy import URL, make_url

from shieldtx.brokers.cloudevents import MAX_PAYLOAD_BYTES
from shieldtx.domain.event_types import MOST_BACKLOG, OnBacklog
from shieldtx.errors import ConfigurationError
from shieldtx.ports.broker import BATCH_BYTES
from shieldtx.settings import environment
from shieldtx.settings.fields import (
    DatabaseUrl,
    Name,
    SchemaName,
    Seconds,
    SecondsOrNever,
    SigningKeys,
)
from shieldtx.store.connections import Pooler
from shieldtx.store.schema import DEFAULT_SHARDS, MAX_SHARDS


class Settings(BaseSettings):
    """Everything that can be configured, checked once at the start."""

    model_config = SettingsConfigDict(
        env_prefix="SHIELDTX_", extra="forbid", frozen=True, hide_input_in_errors=True
    )

    source: Name = Field(description="name of this service, written into every event")
    database_url: DatabaseUrl = Field(description="SQLAlchemy URL of the service's own database")
    database_schema: SchemaName = Field(
        default=None, description="schema of shieldtx's tables; the connection's own by default"
    )
    database_pooler: Pooler = Field(
        default=Pooler.NONE,
        description="transaction: the URL leads to PgBouncer in transaction mode",
    )
    shards: int | None = Field(
        default=None,
        ge=1,
        le=MAX_SHARDS,
        description=f"number of shards of new tables (unset: {DEFAULT_SHARDS}); "
        "existing tables have their own number, and another one here is an error",
    )

    kafka_bootstrap: str = Field(default="127.0.0.1:9092", description="host:port, ...")
    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        default="PLAINTEXT", description="how the brokers are spoken to"
    )
    kafka_sasl_mechanism: str | None = Field(
        default=None, description="PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512"
    )
    kafka_sasl_username: str | None = Field(default=None, description="who to log in as")
    kafka_sasl_password: SecretStr | None = Field(default=None, description="never printed")
    kafka_ssl_cafile: str | None = Field(
        default=None, description="file of the certificates to trust; the system's by default"
    )
    kafka_producer: Literal["kafka-python", "confluent-kafka"] = Field(
        default="kafka-python", description="the relay's client; the faster second is an extra"
    )
    signing_key: SigningKeys = Field(
        default=None,
        description="rollbacks are signed with it and refused without it; for a change, the new "
        "key first and the old one after a comma",
    )
    topic_prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{0,40}$")] = Field(
        default="", description="in front of every topic's name"
    )
    kafka_group_prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{0,40}$")] = Field(
        default="",
        description="in front of every consumer group's id at Kafka, where several environments "
        "share a cluster; a change lets groups begin with the oldest record",
    )
    topic_partitions: int = Field(
        default=8, ge=1, le=10_000, description="of topics that shieldtx creates"
    )
    topic_replication: int = Field(
        default=1, ge=1, le=100, description="of topics that shieldtx creates"
    )

    backlog_limit: int | None = Field(
        default=None,
        ge=1,
        le=MOST_BACKLOG,
        description="events of a topic that may wait to be sent; of types with none of their own",
    )
    on_backlog: OnBacklog = Field(
        default=OnBacklog.REFUSE,
        description="what becomes of more: refuse (BacklogExceeded), warn or ignore",
    )

    relay_batch_size: int = Field(
        default=1000, ge=1, le=10_000, description="events that a relay claims at a time"
    )
    relay_batch_bytes: int = Field(
        default=BATCH_BYTES,
        ge=1,
        description="of payloads that a relay holds, those claimed ahead too; at least one event",
    )
    relay_poll_interval: Seconds = Field(
        default=timedelta(seconds=1), description="between two looks at the outbox without a hint"
    )
    relay_lease: Seconds = Field(
        default=timedelta(seconds=30), description="how soon a dead relay's shards are taken over"
    )
    relay_send_timeout: Seconds = Field(
        default=timedelta(seconds=10), description="for the acknowledgement of a whole batch"
    )
    relay_wakeup: bool = Field(
        default=True, description="NOTIFY after a commit wakes the relay (PostgreSQL only)"
    )
    consumer_batch_size: int = Field(
        default=500, ge=1, le=10_000, description="records that a consumer reads at a time"
    )
    consumer_batch_bytes: int = Field(
        default=BATCH_BYTES,
        ge=1,
        description="of records, in two reads, or of due rows that a consumer holds; at least one",
    )
    consumer_pending_limit: int = Field(
        default=5000,
        ge=1,
        description="unfinished events of a partition from which on it is not polled",
    )
    half_immunity: Seconds = Field(
        default=timedelta(seconds=6), description="of a half message before its first check"
    )
    half_check_interval: Seconds = Field(
        default=timedelta(seconds=30), description="between the first two checks of a half message"
    )
    half_check_growth: float = Field(
        default=1.0, ge=1, le=10, description="factor of that interval from check to check"
    )
    half_check_longest: Seconds = Field(
        default=timedelta(hours=1), description="up to which that interval grows"
    )
    half_check_timeout: Seconds = Field(
        default=timedelta(seconds=10), description="for the answer of one check"
    )
    half_check_threads: int = Field(
        default=1, ge=1, le=64, description="in which a relay calls the checker of one event type"
    )
    half_checks: int = Field(
        default=15, ge=1, le=1000, description="of a half message; then a person decides"
    )
    half_max_age: Seconds = Field(
        default=timedelta(hours=72), description="of a half message; then a person decides"
    )
    barrier_patience: Seconds = Field(
        default=timedelta(seconds=5),
        description="how long a check waits for a local transaction that is in flight",
    )
    stop_timeout: Seconds = Field(
        default=timedelta(seconds=20), description="for a graceful stop after SIGTERM"
    )
    watchdog: Seconds = Field(
        default=timedelta(minutes=5),
        description="a pass longer than this ends the process; a consumer's is never below its "
        "handlers' longest lease",
    )
    failure_limit: SecondsOrNever = Field(
        default=timedelta(minutes=10),
        description="a worker without one good pass for this long ends with exit status 75; 0 for "
        "never. An unreachable broker does not count",
    )

    retention_outbox: Seconds = Field(
        default=timedelta(days=7),
        description="of settled events; above the longest time that a consumer's retries take",
    )
    retention_inbox: Seconds = Field(
        default=timedelta(days=14), description="at least the topics' retention plus redelivery"
    )
    retention_barrier: Seconds = Field(
        default=timedelta(days=7),
        description="of the barrier's rows; above the age and the length of local transactions",
    )
    retention_parked: SecondsOrNever = Field(
        default=timedelta(0),
        description="of parked records that wait for an operator; 0 for ever. Discarded ones stay "
        "for SHIELDTX_RETENTION_INBOX",
    )
    retention_audit: SecondsOrNever = Field(
        default=timedelta(days=365), description="of the audit of operators' actions; 0 for ever"
    )
    trace: bool = Field(
        default=False,
        description="keep when each attempt was made and how it ended, for `shieldtx trace`",
    )
    trace_rows: int = Field(
        default=1_000_000, ge=1, description="of the trace that are kept; older ones are purged"
    )
    retention_trace: Seconds = Field(
        default=timedelta(days=3), description="of the trace, in which attempts are kept"
    )
    max_payload_bytes: int = Field(
        default=1_000_000,
        ge=1,
        le=MAX_PAYLOAD_BYTES,
        description="of a payload as JSON; larger ones are refused. Above the default, raise "
        "`max.message.bytes` of the topics too",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.relay_send_timeout >= self.relay_lease * 0.8:
            raise ValueError(
                f"SHIELDTX_RELAY_SEND_TIMEOUT ({self.relay_send_timeout}) must be below 0.8 of "
                f"SHIELDTX_RELAY_LEASE ({self.relay_lease}): a batch has to end within its lease"
            )
        for name in ("half_check_timeout", "barrier_patience"):
            longer = "half_check_interval" if name == "half_check_timeout" else "half_check_timeout"
            if getattr(self, name) >= getattr(self, longer):
                raise ValueError(
                    f"SHIELDTX_{name.upper()} ({getattr(self, name)}) must be below "
                    f"SHIELDTX_{longer.upper()} ({getattr(self, longer)})"
                )
        if self.retention_barrier <= self.half_max_age:
            raise ValueError(
                f"SHIELDTX_RETENTION_BARRIER ({self.retention_barrier}) must be above "
                f"SHIELDTX_HALF_MAX_AGE ({self.half_max_age}): a check must still find the row"
            )
        if self.retention_inbox < self.retention_outbox:
            raise ValueError(
                f"SHIELDTX_RETENTION_INBOX ({self.retention_inbox}) must not be below "
                f"SHIELDTX_RETENTION_OUTBOX ({self.retention_outbox}): an event that is sent again "
                "must still be known"
            )
        return self

    @classmethod
    def from_env(cls) -> Self:
        """Read the settings; raises ConfigurationError that names every variable at fault."""
        problems = environment.unknown(os.environ, cls.model_fields)
        try:
            settings = cls()  # filled from the environment
        except ValidationError as error:
            for problem in error.errors():
                name = "_".join(str(part) for part in problem["loc"]).upper()
                message = problem["msg"].removeprefix("Value error, ")
                problems.append(f"SHIELDTX_{name}: {message}" if name else message)
            raise ConfigurationError("; ".join(problems)) from None
        if problems:
            raise ConfigurationError("; ".join(problems))
        return settings

    @property
    def signing_keys(self) -> tuple[SecretStr, ...]:
        """The keys of rollbacks' signatures: the first signs, each is accepted."""
        if self.signing_key is None:
            return ()
        keys = self.signing_key.get_secret_value().split(",")
        return tuple(SecretStr(key.strip()) for key in keys)

    @property
    def url(self) -> URL:
        """The database's URL; its password is masked when printed."""
        return make_url(self.database_url.get_secret_value())
