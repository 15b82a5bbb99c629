"""Settings of the Kafka clients and of their consumer groups, and of takeovers on one host."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, Field, SecretStr, model_validator
from pydantic_settings import NoDecode

from shieldtx.brokers.client_options import Role, checked_options
from shieldtx.errors import ConfigurationError
from shieldtx.settings.fields import Seconds

_OPTIONS = "as JSON, by the names of Kafka's documentation; see the guide on connections"


def _read_options(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError('not JSON; it looks like {"client.id": "orders"}') from None


Options = Annotated[dict[str, Any], NoDecode, BeforeValidator(_read_options)]
"""Options by name; JSON in the environment."""


class KafkaFields(BaseModel):
    """The part of the settings that describes clients of Kafka."""

    kafka_ssl_certfile: str | None = Field(
        default=None, description="file of the client's certificate, in PEM, with its chain"
    )
    kafka_ssl_keyfile: str | None = Field(
        default=None,
        description="file of the certificate's private key, in PEM (default: the certificate's "
        "file)",
    )
    kafka_ssl_key_password: SecretStr | None = Field(
        default=None, description="password of the private key; never printed"
    )
    kafka_oauth_url: str | None = Field(
        default=None,
        description="address at which OAUTHBEARER gets its tokens by client credentials (OpenID "
        "Connect); without it, `ShieldTx(kafka_token=...)` returns them",
    )
    kafka_oauth_client_id: str | None = Field(
        default=None, description="id of the client at SHIELDTX_KAFKA_OAUTH_URL"
    )
    kafka_oauth_client_secret: SecretStr | None = Field(
        default=None, description="secret of the client at SHIELDTX_KAFKA_OAUTH_URL; never printed"
    )
    kafka_oauth_scope: str | None = Field(default=None, description="scope of the tokens")
    kafka_options: Options = Field(
        default={}, description=f"options of all Kafka clients, {_OPTIONS}"
    )
    kafka_producer_options: Options = Field(
        default={}, description=f"options of producers, {_OPTIONS}"
    )
    kafka_consumer_options: Options = Field(
        default={}, description=f"options of consumers, {_OPTIONS}"
    )
    kafka_admin_options: Options = Field(
        default={}, description=f"options of admin clients, {_OPTIONS}"
    )
    consumer_session_timeout: Seconds = Field(
        default=timedelta(seconds=15),
        description="a consumer without heartbeats for this long loses its partitions; within the "
        "brokers' group.min.session.timeout.ms and group.max.session.timeout.ms",
    )
    consumer_heartbeat_interval: Seconds = Field(
        default=timedelta(seconds=3),
        description="interval of a consumer's heartbeats; at most a third of "
        "SHIELDTX_CONSUMER_SESSION_TIMEOUT",
    )
    consumer_max_poll_interval: Seconds | None = Field(
        default=None,
        description="a consumer that does not poll for this long loses its partitions (default: "
        "300 s, or the longest lease of the handlers and 180 s, if that is longer)",
    )
    consumer_poll_timeout: Annotated[Seconds, Field(le=timedelta(seconds=10))] = Field(
        default=timedelta(milliseconds=200),
        description="wait for records in a pass of a consumer; due retries wait as long, 10 s at "
        "most",
    )
    consumer_instance_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,200}$")] | None = Field(
        default=None,
        description="name of this process among the members of its consumer groups (Kafka's static "
        "membership), such as the pod's name in a StatefulSet; two processes must not share it",
    )
    early_takeover: bool = Field(
        default=True,
        description="take over from processes on this host that have died, instead of waiting for "
        "their leases: the shards of a relay within about 2 s; the partitions and first attempts "
        "of a consumer when a worker of its group starts. Switch it off where machines are cloned "
        "from one memory snapshot",
    )

    @model_validator(mode="after")
    def _check_options(self) -> Self:
        problems: list[str] = []
        for role in (None, *Role):
            field = "kafka_options" if role is None else f"kafka_{role.value}_options"
            try:
                options = checked_options(f"SHIELDTX_{field.upper()}", getattr(self, field), role)
            except ConfigurationError as error:
                problems.append(str(error))
            else:
                getattr(self, field).update(options)
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def with_kafka_options(self, options: Mapping[str, Any]) -> Self:
        """Return the same settings with further options of all Kafka clients, which override.

        Raises ConfigurationError for options that are invalid or refused.
        """
        return type(self)(**dict(self) | {"kafka_options": {**self.kafka_options, **options}})
