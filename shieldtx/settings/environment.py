"""The environment variables that shieldtx reads, and misspelt ones."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Final

PREFIX: Final = "SHIELDTX_"

OTHER_VARIABLES: Final = frozenset(
    {
        "SHIELDTX_APP",
        "SHIELDTX_CACHE",
        "SHIELDTX_IVY_SETTINGS",
        "SHIELDTX_JDBC_JAR",
        "SHIELDTX_LOG_FORMAT",
        "SHIELDTX_LOG_LEVEL",
        "SHIELDTX_RECONCILE_CONFIG",
        "SHIELDTX_RECONCILE_OUT",
        "SHIELDTX_SPARK_MASTER",
    }
)
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


def unknown(environment: Mapping[str, str], settings: Iterable[str]) -> list[str]:
    """Return a line about each variable with shieldtx's prefix that nothing reads."""
    known = OTHER_VARIABLES.union(f"{PREFIX}{name.upper()}" for name in settings)
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
