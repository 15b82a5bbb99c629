"""`python -m shieldtx.embedded orders payments`: PostgreSQL with two databases, and Kafka."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from shieldtx.embedded.jars import fetch_kafka
from shieldtx.embedded.kafka import EmbeddedKafka
from shieldtx.embedded.postgres import EmbeddedPostgres
from shieldtx.embedded.requirements import EmbeddedError

_POLL_S: Final = 0.5
_NAME: Final = r"[a-z][a-z0-9_]{0,30}"
_DESCRIPTION: Final = (
    "Run PostgreSQL and Apache Kafka on 127.0.0.1 until Ctrl-C, for tutorials and tests. The first "
    "start downloads Kafka. The data of both servers is deleted at the end."
)


def main() -> int:
    """Run both servers until a signal arrives, and return the exit status."""
    arguments = _parse()
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: ended.set())
    try:
        fetch_kafka(progress=print)
        with EmbeddedPostgres() as postgres, EmbeddedKafka() as kafka:
            addresses = {"SHIELDTX_KAFKA_BOOTSTRAP": kafka.bootstrap}
            for name in arguments.databases:
                postgres.create_database(name)
                addresses[f"{name.upper()}_DATABASE_URL"] = postgres.url(name)
            lines = [f"export {name}='{address}'\n" for name, address in addresses.items()]
            with _written(arguments.env, lines):
                print(f"ready: PostgreSQL and Kafka run; source {arguments.env}", flush=True)
                while not ended.wait(_POLL_S):
                    postgres.require_running()
                    kafka.require_running()
    except (EmbeddedError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m shieldtx.embedded", description=_DESCRIPTION)
    parser.add_argument(
        "databases", nargs="+", metavar="DATABASE", type=_name, help="databases to create"
    )
    parser.add_argument(
        "--env",
        type=Path,
        default=Path("servers.env"),
        help="file to write the addresses into, as variables for the shell (default: servers.env)",
    )
    return parser.parse_args()


def _name(text: str) -> str:
    if not re.fullmatch(_NAME, text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a name of lower-case letters, digits and underscores"
        )
    return text


@contextmanager
def _written(path: Path, lines: Sequence[str]) -> Iterator[None]:
    """Keep the addresses in a new file, readable by this user alone: the URLs have a password."""
    try:
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError as error:
        raise EmbeddedError(
            f"{path} exists: other servers write their addresses there. Stop them, delete the "
            "file, or name another one with --env"
        ) from error
    try:
        with os.fdopen(file, "w") as opened:
            opened.writelines(lines)
        yield
    finally:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
