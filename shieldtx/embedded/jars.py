"""The jars of Apache Kafka and of PostgreSQL's JDBC driver: fetched once, pinned, cached.

The file `<name>.pins` next to this module lists each jar with its SHA-256. No other jar is used,
and no other jar may be among them. `scripts/pin-jars` writes these files.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shieldtx.embedded.directories import exclusive
from shieldtx.embedded.maven import MavenRepository, PinnedJar
from shieldtx.embedded.other_versions import chosen_kafka
from shieldtx.embedded.requirements import DownloadFailed
from shieldtx.embedded.status_line import Progress

KAFKA_VERSION: Final = "4.3.1"
JDBC_VERSION: Final = "42.7.14"
_STEP_S: Final = 0.1
_ARRIVING: Final = "arriving"


@dataclass(frozen=True, kw_only=True, slots=True)
class Bundle:
    """Jars that are fetched together; `name` is their folder in the cache."""

    name: str
    title: str
    roots: tuple[str, ...]
    """The coordinates whose jars are pinned."""
    transitive: bool
    """Whether the jars that they depend on are pinned too."""
    folder: Path = Path(__file__).parent
    """Where the list of its jars is."""

    @property
    def pins(self) -> Path:
        """The file that lists the jars."""
        return self.folder / f"{self.name}.pins"

    def jars(self) -> list[PinnedJar]:
        """Return the pinned jars."""
        return [PinnedJar.parsed(line) for line in self.pins.read_text("ascii").splitlines()]


KAFKA: Final = Bundle(
    name=f"kafka-{KAFKA_VERSION}",
    title=f"Apache Kafka {KAFKA_VERSION}",
    roots=(
        f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
        # Kafka depends only on the interface of slf4j: without a backend its log would be lost.
        "org.slf4j:slf4j-simple:1.7.36",
    ),
    transitive=True,
)
JDBC_DRIVER: Final = Bundle(
    name=f"postgresql-{JDBC_VERSION}",
    title=f"PostgreSQL's JDBC driver {JDBC_VERSION}",
    roots=(f"org.postgresql:postgresql:{JDBC_VERSION}",),
    transitive=False,
)


def fetch_kafka(cache: Path | None = None, progress: Progress | None = None) -> Path:
    """Return the folder with Apache Kafka's jars, fetched (44 MB) if they are not cached.

    $SHIELDTX_KAFKA_JARS names a folder with those of another version, which are used as they are.
    `cache` defaults to $SHIELDTX_CACHE or ~/.cache/shieldtx. The jars come from Maven Central, or
    from the mirror $SHIELDTX_MAVEN_REPOSITORY. `progress` gets each step; a `status_line` shows
    them. Raises RequirementMissing without the package jgo, DownloadFailed when the jars cannot be
    fetched.
    """
    return chosen_kafka() or fetch(KAFKA, cache, progress)


def fetch_jdbc_driver(cache: Path | None = None, progress: Progress | None = None) -> Path:
    """Return the jar of PostgreSQL's JDBC driver; cache and errors as in `fetch_kafka`."""
    folder = fetch(JDBC_DRIVER, cache, progress)
    return folder / f"postgresql-{JDBC_VERSION}.jar"


def fetch(bundle: Bundle, cache: Path | None = None, progress: Progress | None = None) -> Path:
    """Return the folder with a bundle's jars; cache, progress and errors as in `fetch_kafka`."""
    return _verified(bundle, cache or default_cache(), progress or _silent)


def default_cache() -> Path:
    """Return $SHIELDTX_CACHE, or ~/.cache/shieldtx when it is not set."""
    chosen = os.environ.get("SHIELDTX_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "shieldtx"


def _verified(bundle: Bundle, cache: Path, progress: Progress) -> Path:
    """Return the bundle's folder, verified; one rename moves it into the cache."""
    cache = cache.resolve()
    folder = cache / bundle.name
    try:
        if _is_complete(bundle, folder):
            return folder
        cache.mkdir(parents=True, exist_ok=True)
        with exclusive(
            cache / f"{bundle.name}.lock",
            on_wait=lambda: progress(f"{bundle.title}: another process is fetching it"),
        ):
            if not _is_complete(bundle, folder):
                _renew(bundle, folder, progress)
    except OSError as error:
        raise DownloadFailed(
            f"{bundle.title} cannot be kept in {cache}: {error}. SHIELDTX_CACHE names another "
            "folder"
        ) from error
    return folder


def _renew(bundle: Bundle, folder: Path, progress: Progress) -> None:
    """Replace the folder by a complete one; the good jars of interrupted fetches are kept."""
    part = folder.with_name(f".{bundle.name}.part")
    if folder.is_dir():  # damaged
        shutil.rmtree(part, ignore_errors=True)
        folder.rename(part)
    part.mkdir(exist_ok=True)
    for path in _unexpected(bundle, part):
        _remove(path)
    jars = bundle.jars()
    missing = _missing(bundle, part)
    steps = _Steps(bundle, jars=len(jars), progress=progress)
    repository = MavenRepository(part / _ARRIVING, steps.received)
    progress(f"{bundle.title}: fetching {_count(missing)}")
    for done, jar in enumerate(missing, start=len(jars) - len(missing)):
        steps.begin(done)
        repository.fetch(jar, part / jar.file_name)
    shutil.rmtree(part / _ARRIVING, ignore_errors=True)
    part.rename(folder)
    progress(f"{bundle.title}: {_count(jars)} in {folder}")


def _is_complete(bundle: Bundle, folder: Path) -> bool:
    """Return whether a folder has exactly the pinned jars."""
    return not _missing(bundle, folder) and not _unexpected(bundle, folder)


def _missing(bundle: Bundle, folder: Path) -> list[PinnedJar]:
    return [jar for jar in bundle.jars() if not jar.is_at(folder / jar.file_name)]


def _unexpected(bundle: Bundle, folder: Path) -> list[Path]:
    expected = {jar.file_name for jar in bundle.jars()}
    return [path for path in folder.iterdir() if path.name not in expected]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


class _Steps:
    """The steps of a download, at most ten in a second."""

    def __init__(self, bundle: Bundle, *, jars: int, progress: Progress) -> None:
        self._title = bundle.title
        self._jars = jars
        self._progress = progress
        self._done = 0
        self._bytes = 0
        self._shown = float("-inf")

    def begin(self, done: int) -> None:
        """Begin the next jar, with `done` jars before it."""
        self._done = done
        self._show()

    def received(self, count: int) -> None:
        """Count received bytes."""
        self._bytes += count
        self._show()

    def _show(self) -> None:
        now = time.monotonic()
        if now - self._shown >= _STEP_S:
            self._shown = now
            size = f"{self._bytes / 1e6:.1f} MB"
            self._progress(f"{self._title}: fetched {self._done} of {self._jars} jars, {size}")


def _count(jars: Sequence[PinnedJar]) -> str:
    return f"{len(jars)} jar{'' if len(jars) == 1 else 's'}"


def _silent(_step: str) -> None:
    """Ignore the progress."""
