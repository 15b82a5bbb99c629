"""Installed programs in place of the pinned ones, named by the environment: other versions."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Final

from shieldtx.embedded.child_process import Account
from shieldtx.embedded.directories import can_enter
from shieldtx.embedded.requirements import EmbeddedError

POSTGRES_PROGRAMS: Final = "SHIELDTX_POSTGRES_PROGRAMS"
KAFKA_JARS: Final = "SHIELDTX_KAFKA_JARS"
_ANSWER_S: Final = 30.0


def chosen_postgres(account: Account | None) -> Path | None:
    """Return the folder of $SHIELDTX_POSTGRES_PROGRAMS, which `account` can enter; None: not set.

    Raises EmbeddedError if it has no PostgreSQL.
    """
    folder = _chosen(POSTGRES_PROGRAMS)
    if folder is None:
        return None
    example = "such as /usr/lib/postgresql/17/bin"
    for program in ("postgres", "initdb"):
        if not os.access(folder / program, os.X_OK):
            raise EmbeddedError(
                f"{POSTGRES_PROGRAMS}: {folder} has no program `{program}`: name the folder with "
                f"the programs of a PostgreSQL server, {example}"
            )
    if account is not None and not can_enter(folder, account):
        raise EmbeddedError(
            f"{POSTGRES_PROGRAMS}: {folder} is closed to the account {account.name}, as which "
            f"PostgreSQL runs when root starts it: name one that any account may read, {example}"
        )
    return folder


def chosen_kafka() -> Path | None:
    """Return the folder of $SHIELDTX_KAFKA_JARS; None: not set.

    Raises EmbeddedError if it has no jar of Apache Kafka's broker.
    """
    folder = _chosen(KAFKA_JARS)
    if folder is not None and not any(folder.glob("kafka_2*.jar")):
        raise EmbeddedError(
            f"{KAFKA_JARS}: {folder} has no jar kafka_2*.jar: name the folder with the jars of an "
            "Apache Kafka broker, `libs` in its distribution"
        )
    return folder


def postgres_release(programs: Path) -> int:
    """Return the major version of a folder's PostgreSQL, such as 18; raises EmbeddedError."""
    try:
        answer = subprocess.run(  # noqa: S603  the user's own program, no shell
            [programs / "postgres", "--version"],
            capture_output=True,
            text=True,
            timeout=_ANSWER_S,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EmbeddedError(f"{programs / 'postgres'} does not run: {error}") from error
    found = re.search(r"PostgreSQL\) (\d+)", answer)
    if found is None:
        raise EmbeddedError(f"{programs / 'postgres'} prints no version, but {answer!r}")
    return int(found[1])


def _chosen(variable: str) -> Path | None:
    chosen = os.environ.get(variable)
    return Path(chosen).expanduser().resolve() if chosen else None
