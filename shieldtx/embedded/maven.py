"""Jars of a Maven repository: Maven Central, or a mirror that the environment names."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit
from xml.etree import ElementTree as ET

from shieldtx.embedded.requirements import DownloadFailed, require_package

if TYPE_CHECKING:
    from jgo.maven import MavenContext

log = logging.getLogger(__name__)

REPOSITORY: Final = "SHIELDTX_MAVEN_REPOSITORY"
IVY_SETTINGS: Final = "SHIELDTX_IVY_SETTINGS"
_SILENCE_S: Final = 30
"""Seconds without any data after which an attempt fails."""
_ATTEMPTS: Final = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class PinnedJar:
    """A jar by its Maven coordinate, and the only content that it may have."""

    group: str
    artifact: str
    version: str
    sha256: str

    @classmethod
    def parsed(cls, line: str) -> PinnedJar:
        """Return the jar of a line `SHA-256  group:artifact:version`."""
        sha256, coordinate = line.split()
        group, artifact, version = coordinate.split(":")
        return cls(group=group, artifact=artifact, version=version, sha256=sha256)

    @property
    def file_name(self) -> str:
        """The name of its file, in a repository as in the cache."""
        return f"{self.artifact}-{self.version}.jar"

    def is_at(self, path: Path) -> bool:
        """Return whether a file exists and has the pinned content."""
        try:
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == self.sha256
        except (FileNotFoundError, IsADirectoryError):
            return False


class MavenRepository:
    """The repository that jars are fetched from; `received` is called with numbers of bytes.

    Unverified files exist only in the folder `arriving`, which the repository creates and replaces.
    """

    def __init__(self, arriving: Path, received: Callable[[int], None]) -> None:
        mirror = mirror_of(os.environ)
        require_package("jgo")
        # Imported only for a download: it takes 0.2 s.
        from jgo.maven import MavenContext, PythonResolver  # noqa: PLC0415

        @contextmanager
        def counted(_file: str, _size: int) -> Iterator[Callable[[int], None]]:
            yield received

        shutil.rmtree(arriving, ignore_errors=True)
        self._context: MavenContext = MavenContext(
            resolver=PythonResolver(progress_callback=counted),
            repo_cache=arriving,
            remote_repos={"mirror": mirror} if mirror else None,
            timeout=_SILENCE_S,
        )
        (self.address,) = map(_without_account, self._context.remote_repos.values())

    def fetch(self, jar: PinnedJar, target: Path) -> None:
        """Download a jar, verify it, and move it to `target`.

        A broken connection is followed by another attempt. Raises DownloadFailed.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                arrived = self._download(jar)
            except OSError as error:  # those of the network included
                if attempt == _ATTEMPTS:
                    raise self._failed(jar, str(error)) from error
            except (RuntimeError, ValueError) as error:
                # jgo's error for every status but 200, and for an answer that is no HTTP.
                reason = "it answers without the file: it has none, or it refuses access"
                raise self._failed(jar, reason) from error
            else:
                break
        if not jar.is_at(arrived):
            raise self._failed(jar, "the file has another checksum than the pinned one")
        arrived.replace(target)

    def _download(self, jar: PinnedJar) -> Path:
        project = self._context.project(jar.group, jar.artifact)
        artifact = project.at_version(jar.version).artifact()
        try:
            return artifact.resolve()
        except BaseException:
            # jgo would take the unfinished file for a complete one.
            if artifact.cached_path is not None:
                artifact.cached_path.unlink(missing_ok=True)
            raise

    def _failed(self, jar: PinnedJar, reason: str) -> DownloadFailed:
        return DownloadFailed(
            f"{jar.file_name} could not be fetched from {self.address}: {reason}. Is the network "
            f"there? With a mirror of Maven Central, set {REPOSITORY} to its address"
        )


def mirror_of(environment: Mapping[str, str]) -> str | None:
    """Return the address of the mirror that the environment names; None for Maven Central.

    Raises DownloadFailed for a value that is not the address of a repository.
    """
    name = REPOSITORY
    address = environment.get(REPOSITORY)
    if not address and (settings := environment.get(IVY_SETTINGS)):
        name, address = IVY_SETTINGS, _root_of(Path(settings))
        log.warning(
            "SHIELDTX_IVY_SETTINGS is deprecated",
            extra={
                "action": "ivy_settings_deprecated",
                "advice": f"set {REPOSITORY} to {_without_account(address)}",
            },
        )
    if not address:
        return None
    parts = urlsplit(address)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise DownloadFailed(
            f"{name} has {_without_account(address)!r}, which is not the address of a Maven "
            "repository: it begins with https:// or http://"
        )
    return address.rstrip("/")


def _root_of(ivy_settings: Path) -> str:
    """Return the root of the first resolver `ibiblio` in an Ivy settings file."""
    try:
        elements = ET.parse(ivy_settings).iter("ibiblio")  # noqa: S314 - the user's own file
        return next(root for element in elements if (root := element.get("root")))
    except (OSError, ET.ParseError, StopIteration) as error:
        problem = str(error) or "no resolver ibiblio with a root is in it"
        raise DownloadFailed(
            f"{IVY_SETTINGS}: {ivy_settings} names no mirror of Maven Central ({problem}): set "
            f"{REPOSITORY} to the address of the mirror instead"
        ) from error


def _without_account(address: str) -> str:
    """Return an address without user name and password."""
    parts = urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
