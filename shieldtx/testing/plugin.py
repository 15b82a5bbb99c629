"""The pytest plugin: fixtures for the tests of a service, which import shieldtx when used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from shieldtx.embedded import EmbeddedKafka, EmbeddedPostgres
    from shieldtx.testing.app import MemoryApp


@pytest.fixture
def shieldtx_memory() -> Iterator[Callable[..., MemoryApp]]:
    """A function that takes the arguments of `memory_app`; the end of the test ends the block."""
    from shieldtx.testing.replacement import memory_app  # noqa: PLC0415  not for tests without it

    with ExitStack() as stack:

        def enter(*shields: Any, **options: Any) -> MemoryApp:
            return stack.enter_context(memory_app(*shields, **options))

        yield enter


@pytest.fixture(scope="session")
def shieldtx_postgres() -> Iterator[EmbeddedPostgres]:
    """A PostgreSQL server of this process, or of each worker of pytest-xdist.

    It ends with the process, also when that is killed. It needs the extra `embedded`.
    """
    from shieldtx.embedded import EmbeddedPostgres  # noqa: PLC0415  an extra

    with EmbeddedPostgres(fsync=False) as server:
        yield server


@pytest.fixture(scope="session")
def shieldtx_kafka() -> Iterator[EmbeddedKafka]:
    """An Apache Kafka broker of this process, or of each worker of pytest-xdist.

    It ends with the process, also when that is killed. It needs Java and the extra `embedded`.
    """
    from shieldtx.embedded import EmbeddedKafka  # noqa: PLC0415  an extra

    with EmbeddedKafka() as server:
        yield server
