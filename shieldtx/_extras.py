"""Optional packages: the error of a missing one names the extra that installs it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from shieldtx.errors import ConfigurationError

EXTRAS: Final[Mapping[str, str]] = {
    "alembic": "migrations",
    "apscheduler": "kafka",
    "crc32c": "kafka",
    "jinja2": "spark",
    "kafka": "kafka",
    "prometheus_client": "metrics",
    "rich": "cli",
    "typer": "cli",
}
"""The extra of each optional package that `import_extra` guards."""


@contextmanager
def import_extra(use: str) -> Iterator[None]:
    """Raise ConfigurationError with the command to run if an import inside needs an extra.

    `use` is the subject of the message, such as "the relay".
    """
    try:
        yield
    except ModuleNotFoundError as error:
        line = missing_extra(use, error)
        if line is None:
            raise
        raise ConfigurationError(line) from error


def missing_extra(use: str, error: ModuleNotFoundError) -> str | None:
    """Return the message for a missing optional package, None for another module."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        return None
    install = f"pip install 'shieldtx[{EXTRAS[package]}]'"
    return f"{use} needs the package {package}, which is not installed: {install}"
