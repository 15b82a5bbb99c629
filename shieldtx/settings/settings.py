"""Settings, read from the environment as `SHIELDTX_*`."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic.functional_validators import ModelWrapValidatorHandler
from pydantic_settings import BaseSettings, SettingsConfigDict
from sqlalchemy import URL, make_url

from shieldtx.brokers.cloudevents import MAX_PAYLOAD_BYTES
from shieldtx.domain.event_types import MOST_BACKLOG, OnBacklog
from shieldtx.errors import ConfigurationError
from shieldtx.ports.broker import BATCH_BYTES
from shieldtx.settings import environment
from shieldtx.settings.fields import (
    BreakerLength,
    Concurrency,
    DatabaseUrl,
    HttpAddress,
    Name,
    ProbeInterval,
    SchemaName,
    Seconds,
    SecondsOrNever,
    SigningKeys,
)
from shieldtx.settings.kafka import KafkaFields
from shieldtx.settings.problems import problems_of
from shieldtx.settings.rules import broken_rules
from shieldtx.store.connections import Pooler
from shieldtx.store.schema_settings import DEFAULT_SHARDS, MAX_SHARDS


class Settings(KafkaFields, BaseSettings):
    """All settings of a service, validated once at the start."""

    model_config = SettingsConfigDict(
        env_prefix="SHIELDTX_", extra="forbid", frozen=True, hide_input_in_errors=True
    )

    source: Name = Field(description="name of this service, written into every event")
    database_url: DatabaseUrl = Field(
        description="SQLAlchemy URL of the service's own database, as in "
        "postgresql+psycopg://user:password@host:5432/name. Drivers: psycopg, and sqlite in tests. "
        "It is the same where the service's own sessions use another driver, such as asyncpg"
    )
    database_schema: SchemaName = Field(
        default=None, description="schema of shieldtx's tables; the connection's own by default"
    )
    database_pooler: Pooler = Field(
        default=Pooler.NONE,
        description="`transaction` if the URL connects through PgBouncer in transaction mode",
    )
    shards: int | None = Field(
        default=None,
        ge=1,
        le=MAX_SHARDS,
        description=f"number of shards of new tables (default {DEFAULT_SHARDS}); for existing "
        "tables, a different number is an error",
    )

    kafka_bootstrap: str = Field(
        default="127.0.0.1:9092",
        description="addresses of the Kafka brokers, as host:port,host:port",
    )
    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        default="PLAINTEXT",
        description="security protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL",
    )
    kafka_sasl_mechanism: str | None = Field(
        default=None, description="SASL mechanism: PLAIN, SCRAM-SHA-256, -512 or OAUTHBEARER"
    )
    kafka_sasl_username: str | None = Field(default=None, description="SASL user name")
    kafka_sasl_password: SecretStr | None = Field(
        default=None, description="SASL password; never printed"
    )
    kafka_ssl_cafile: str | None = Field(
        default=None, description="file of trusted CA certificates (default: the system's)"
    )
    kafka_producer: Literal["kafka-python", "confluent-kafka"] = Field(
        default="kafka-python",
        description="Kafka client of the relay: kafka-python, or confluent-kafka, which is faster "
        "and an extra to install",
    )
    signing_key: SigningKeys = Field(
        default=None,
        description="keys of rollback events, separated by commas: the first signs, every one is "
        "accepted; consumers refuse unsigned rollback events",
    )
    topic_prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{0,40}$")] = Field(
        default="", description="prefix of every topic name"
    )
    kafka_group_prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{0,40}$")] = Field(
        default="",
        description="prefix of every Kafka consumer group id, for environments that share a "
        "cluster; after a change, groups start at the oldest record",
    )
    topic_partitions: int = Field(
        default=8, ge=1, le=10_000, description="partitions of topics that shieldtx creates"
    )
    topic_replication: int | None = Field(
        default=None, ge=1, le=100, description="replication of new topics (default: the cluster's)"
    )

    backlog_limit: int | None = Field(
        default=None,
        ge=1,
        le=MOST_BACKLOG,
        description="maximum events of a topic that wait to be sent, for event types without their "
        "own limit (default: no limit)",
    )
    on_backlog: OnBacklog = Field(
        default=OnBacklog.REFUSE,
        description="action above the backlog limit: refuse (BacklogExceeded), warn or ignore",
    )

    relay_batch_size: int = Field(
        default=1000, ge=1, le=10_000, description="maximum events that a relay claims at a time"
    )
    relay_batch_bytes: int = Field(
        default=BATCH_BYTES,
        ge=1,
        description="maximum bytes of payloads in a relay's memory, including prefetched events; "
        "one event is always allowed",
    )
    relay_poll_interval: Seconds = Field(
        default=timedelta(seconds=1),
        description="interval between polls of the outbox without a notification",
    )
    relay_lease: Seconds = Field(
        default=timedelta(seconds=30),
        description="lease of a relay on its shards; other relays take over after it",
    )
    relay_send_timeout: Seconds = Field(
        default=timedelta(seconds=10),
        description="timeout for the acknowledgement of a whole batch; below 0.8 of "
        "SHIELDTX_RELAY_LEASE",
    )
    relay_wakeup: bool = Field(
        default=True, description="wake the relay by NOTIFY after each commit (PostgreSQL only)"
    )
    consumer_batch_size: int = Field(
        default=500, ge=1, le=10_000, description="maximum records that a consumer reads at a time"
    )
    consumer_batch_bytes: int = Field(
        default=BATCH_BYTES,
        ge=1,
        description="maximum bytes of records or due rows in a consumer's memory; one is always "
        "allowed",
    )
    consumer_concurrency: Concurrency = 1
    consumer_pending_limit: int = Field(
        default=5000,
        ge=1,
        description="unfinished events of a partition at which the consumer pauses it",
    )
    consumer_breaker: BreakerLength = 5
    consumer_probe_interval: ProbeInterval = timedelta(seconds=5)
    half_immunity: Seconds = Field(
        default=timedelta(seconds=6),
        description="age of a half message before its first check-back",
    )
    half_check_interval: Seconds = Field(
        default=timedelta(seconds=30),
        description="interval between the first two check-backs of a half message; above "
        "SHIELDTX_HALF_CHECK_TIMEOUT",
    )
    half_check_growth: float = Field(
        default=1.0, ge=1, le=10, description="growth of the check-back interval, as a factor"
    )
    half_check_longest: Seconds = Field(
        default=timedelta(hours=1), description="maximum check-back interval"
    )
    half_check_timeout: Seconds = Field(
        default=timedelta(seconds=10),
        description="timeout of one check-back; above SHIELDTX_BARRIER_PATIENCE, and below "
        "SHIELDTX_HALF_CHECK_INTERVAL",
    )
    half_check_threads: int = Field(
        default=1, ge=1, le=64, description="threads of a relay for the checks of one event type"
    )
    half_checks: int = Field(
        default=15,
        ge=1,
        le=1000,
        description="maximum check-backs per half message; then it becomes UNRESOLVED",
    )
    half_max_age: Seconds = Field(
        default=timedelta(hours=72),
        description="maximum age of a half message; then it becomes UNRESOLVED. Below "
        "SHIELDTX_RETENTION_BARRIER",
    )
    barrier_patience: Seconds = Field(
        default=timedelta(seconds=5),
        description="how long a check-back waits for a local transaction in progress; below "
        "SHIELDTX_HALF_CHECK_TIMEOUT",
    )
    stop_timeout: Seconds = Field(
        default=timedelta(seconds=20), description="timeout of a graceful stop after SIGTERM"
    )
    watchdog: Seconds = Field(
        default=timedelta(minutes=5),
        description="maximum duration of a pass; then the process exits. For consumers at least "
        "the longest lease of their handlers",
    )
    http: HttpAddress = None
    failure_limit: SecondsOrNever = Field(
        default=timedelta(minutes=10),
        description="a worker without a successful pass for this long exits with status 75; 0 "
        "disables it. An unreachable broker does not count as a failure",
    )

    retention_outbox: Seconds = Field(
        default=timedelta(days=7),
        description="how long settled outbox rows are kept; set it above the longest retry time of "
        "any consumer. FAILED and UNRESOLVED rows are never purged",
    )
    retention_inbox: Seconds = Field(
        default=timedelta(days=14),
        description="how long settled inbox rows are kept; at least the topic retention plus "
        "redelivery, and not below SHIELDTX_RETENTION_OUTBOX. DEAD rows are never purged",
    )
    retention_barrier: Seconds = Field(
        default=timedelta(days=7),
        description="how long barrier rows are kept; above SHIELDTX_HALF_MAX_AGE and the longest "
        "local transaction",
    )
    retention_parked: SecondsOrNever = Field(
        default=timedelta(0),
        description="how long parked records wait for an operator; 0 keeps them for ever. "
        "Discarded records stay for SHIELDTX_RETENTION_INBOX",
    )
    retention_audit: SecondsOrNever = Field(
        default=timedelta(days=365),
        description="how long the audit log of operators is kept; 0 keeps it for ever",
    )
    trace: bool = Field(
        default=False,
        description="record time and outcome of each attempt, for `shieldtx trace`",
    )
    trace_rows: int = Field(
        default=1_000_000, ge=1, description="maximum rows of the trace; older rows are purged"
    )
    retention_trace: Seconds = Field(
        default=timedelta(days=3), description="how long trace rows are kept"
    )
    max_payload_bytes: int = Field(
        default=1_000_000,
        ge=1,
        le=MAX_PAYLOAD_BYTES,
        description="maximum bytes of a payload as JSON; larger payloads are refused. Above the "
        "default, raise `max.message.bytes` of the topics too",
    )

    @model_validator(mode="after")
    def _obey_rules(self) -> Self:
        if broken := list(broken_rules(vars(self))):
            raise ValueError("; ".join(broken))
        return self

    @model_validator(mode="wrap")
    @classmethod
    def _refuse(cls, given: Any, make: ModelWrapValidatorHandler[Self]) -> Self:
        """Raise ConfigurationError, which names every invalid setting, with pydantic's error."""
        try:
            return make(given)
        except ValidationError as error:
            raise ConfigurationError("; ".join(problems_of(error))) from error

    @classmethod
    def from_env(cls) -> Self:
        """Read the settings; raises ConfigurationError that names every invalid variable."""
        unknown = environment.unknown(os.environ, cls.model_fields)
        try:
            settings = cls()  # filled from the environment
        except ConfigurationError as error:
            raise ConfigurationError("; ".join([*unknown, str(error)])) from error.__cause__
        if unknown:
            raise ConfigurationError("; ".join(unknown))
        return settings

    @property
    def signing_keys(self) -> tuple[SecretStr, ...]:
        """Keys of rollback events' signatures: the first key signs, all keys verify."""
        if self.signing_key is None:
            return ()
        keys = self.signing_key.get_secret_value().split(",")
        return tuple(SecretStr(key.strip()) for key in keys)

    @property
    def url(self) -> URL:
        """URL of the database; its password is masked when printed."""
        return make_url(self.database_url.get_secret_value())
