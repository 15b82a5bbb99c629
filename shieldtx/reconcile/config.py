"""`reconcile.toml`: the services to compare, and the events that their groups should receive."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from shieldtx.domain.durations import read_duration
from shieldtx.domain.states import TxKind
from shieldtx.errors import ConfigurationError
from shieldtx.reconcile.expectations import ExpectedGroup, FormerGroup, Others
from shieldtx.reconcile.request import BrokerAccess, ServiceDatabase
from shieldtx.reconcile.webhook import Webhook

_Name = Annotated[str, Field(pattern=r"^[^\s'\"{}]{1,200}$")]
_FormerGroup = Annotated[str, Field(pattern=r"^[^\s'\"{}:]{1,200}(: ?[^\s'\"{}]{1,200})?$")]
_Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
_Schema = Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_]{0,62}$")]
_Duration = Annotated[timedelta, BeforeValidator(read_duration), Field(ge=timedelta(0))]


class _Part(BaseModel):
    # Error messages have the location of a wrong value and never the value: a misplaced value may
    # be a secret.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class _Group(_Part):
    name: _Name
    receives: tuple[_Name, ...] = ()
    compensates: tuple[_Name, ...] = ()
    compensates_others: tuple[_Name, ...] = ()
    events: tuple[_Name, ...] = ()
    upstreams: tuple[_Name, ...] = Field(default=(), alias="from")
    may_be_unused: tuple[_Name, ...] = ()
    max_attempts: Annotated[int, Field(ge=1)] | None = None


class _Service(_Part):
    url: _Variable
    replica_url: _Variable | None = None
    schema_: _Schema | None = Field(default=None, alias="schema")
    source: _Name | None = None
    retention: _Duration | Literal["for-ever"] = timedelta(days=7)
    for_others: tuple[_Name, ...] = ()
    former_groups: tuple[_FormerGroup, ...] = ()
    parallel_topics: tuple[_Name, ...] = ()
    other_sources: tuple[_Name, ...] = ()
    groups: tuple[_Group, ...] = ()


class _Topics(_Part):
    bootstrap: str
    prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{0,40}$")] = ""
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: str | None = None
    sasl_username: str | None = None
    sasl_password: _Variable | None = None
    ssl_cafile: str | None = None


class _Webhook(_Part):
    url: _Variable
    token: _Variable | None = None
    allow_http: bool = False


class _File(_Part):
    name: _Name | None = None
    margin: _Duration = timedelta(minutes=15)
    statement_timeout: _Duration = timedelta(hours=1)
    services: dict[_Name, _Service] = Field(min_length=1)
    topics: _Topics | None = None
    webhook: _Webhook | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration:
    """The configuration of the nightly comparison."""

    scope: str
    """The name under which runs are stored. Each name has its own watermarks."""
    services: tuple[ServiceDatabase, ...]
    """The database of the first service stores the runs."""
    options: tuple[str, ...] = ()
    """The options with which a command line names this configuration; empty: not known."""
    broker: BrokerAccess | None = None
    webhook: Webhook | None = None
    margin: timedelta = timedelta(minutes=15)
    statement_timeout: timedelta = timedelta(hours=1)


def read_configuration(path: Path, environment: Mapping[str, str]) -> Configuration:
    """Read a TOML file, and look up the variables that it names in the `environment`.

    Raises ConfigurationError for an unreadable file, for invalid keys and values, and for variables
    that are not set. The message has the location and never a value.
    """
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
        file = _File.model_validate(raw)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not TOML: {error}") from None
    except ValidationError as error:
        raise ConfigurationError(f"{path}: {_problems(error)}") from None
    variables = _Variables(path=path, environment=environment)
    return Configuration(
        scope=file.name or path.stem,
        services=tuple(_service(n, given, variables) for n, given in file.services.items()),
        options=("--config", str(path.absolute())),
        broker=None if file.topics is None else _broker(file.topics, variables),
        webhook=None if file.webhook is None else _webhook(file.webhook, variables),
        margin=file.margin,
        statement_timeout=file.statement_timeout,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Variables:
    path: Path
    environment: Mapping[str, str]

    def value(self, name: str, *, of: str) -> str:
        found = self.environment.get(name)
        if not found:
            raise ConfigurationError(
                f"{self.path}: {of}: the environment variable {name} is not set"
            )
        return found

    def url(self, name: str, *, of: str) -> str:
        found = self.value(name, of=of)
        try:
            make_url(found)
        except (ArgumentError, ValueError):
            raise ConfigurationError(
                f"{self.path}: {of}: {name} does not hold a database URL"
            ) from None
        return found


def _service(name: str, given: _Service, variables: _Variables) -> ServiceDatabase:
    place = f"services.{name}"
    replica = given.replica_url
    return ServiceDatabase(
        name=given.source or name,
        url=variables.url(given.url, of=f"{place}.url"),
        replica_url=None if replica is None else variables.url(replica, of=f"{place}.replica_url"),
        schema=given.schema_,
        retention=None if isinstance(given.retention, str) else given.retention,
        groups=tuple(_groups(place, given.groups, variables.path)) or None,
        others=Others.named(*given.for_others),
        former_groups=tuple(map(_former_group, given.former_groups)),
        parallel_topics=given.parallel_topics,
        other_sources=given.other_sources,
    )


def _former_group(given: str) -> FormerGroup:
    name, _, event_type = given.partition(":")
    return FormerGroup(name=name, event_type=event_type.strip() or None)


def _groups(place: str, given: tuple[_Group, ...], path: Path) -> list[ExpectedGroup]:
    groups = []
    for group in given:
        if not (group.receives or group.compensates or group.compensates_others):
            raise ConfigurationError(
                f"{path}: {place}.groups: {group.name} has no topics: name them in `receives` or "
                "`compensates`, or remove the group"
            )
        if group.upstreams and not group.receives:
            raise ConfigurationError(
                f"{path}: {place}.groups: {group.name} has `from` without `receives`: name the "
                "topics in `receives`, or remove `from`, which does not apply to `compensates`"
            )
        _check_compensated(place, group, path)
        for kind, topics in (
            (TxKind.COMMIT, group.receives),
            (TxKind.ROLLBACK, group.compensates),
        ):
            if topics:
                groups.append(
                    ExpectedGroup(
                        name=group.name,
                        kind=kind,
                        topics=topics,
                        event_types=group.events,
                        upstreams=group.upstreams if kind is TxKind.COMMIT else (),
                        max_attempts=group.max_attempts,
                        may_be_unused=group.may_be_unused,
                    )
                )
        if group.compensates_others:
            groups.append(
                ExpectedGroup(
                    name=group.name,
                    kind=TxKind.ROLLBACK,
                    of_others=True,
                    topics=group.receives,
                    event_types=group.compensates_others,
                    upstreams=group.upstreams,
                    may_be_unused=group.may_be_unused,
                )
            )
    return groups


def _check_compensated(place: str, group: _Group, path: Path) -> None:
    """Raise ConfigurationError where a group compensates events of others without handling them."""
    given = f"{path}: {place}.groups: {group.name} has `compensates_others`"
    if group.compensates_others and not group.receives:
        raise ConfigurationError(
            f"{given} without `receives`: a group compensates only those events of another service "
            "that it handles itself; name their topics in `receives`"
        )
    left_out = sorted({*group.compensates_others} - {*group.events})
    if group.events and left_out:
        raise ConfigurationError(
            f"{given} {', '.join(left_out)}, which is not among its `events`: add it there"
        )


def _broker(given: _Topics, variables: _Variables) -> BrokerAccess:
    password = given.sasl_password
    return BrokerAccess(
        bootstrap=given.bootstrap,
        topic_prefix=given.prefix,
        security_protocol=given.security_protocol,
        sasl_mechanism=given.sasl_mechanism,
        sasl_username=given.sasl_username,
        sasl_password=None
        if password is None
        else variables.value(password, of="topics.sasl_password"),
        ssl_cafile=given.ssl_cafile,
    )


def _webhook(given: _Webhook, variables: _Variables) -> Webhook:
    url = variables.value(given.url, of="webhook.url")
    token = None if given.token is None else variables.value(given.token, of="webhook.token")
    try:
        return Webhook(url=url, token=token, allow_http=given.allow_http)
    except ConfigurationError as error:
        raise ConfigurationError(f"{variables.path}: {error}") from None


def _problems(error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(map(str, problem['loc'])) or 'the file'}: {_words(problem)}"
        for problem in error.errors(include_input=False, include_url=False)
    )


def _words(problem: Any) -> str:
    if problem["type"] == "string_pattern_mismatch" and problem["loc"][-1] in _SECRETS:
        return "write the name of the environment variable that holds it, never the value itself"
    if problem["type"] == "extra_forbidden":
        return "there is no such key"
    return str(problem["msg"])


_SECRETS = {"url", "replica_url", "sasl_password", "token"}
