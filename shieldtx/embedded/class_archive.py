"""Archives of classes, with which a Java program starts in half the time (JEP 350).

Java itself examines whether an archive is its own and of the same jars; if not, it starts without.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# What makes an archive unfit is no news to whoever starts a broker.
_QUIETLY: Final = ("-Xshare:auto", "-Xlog:disable", "-Xlog:all=error:stderr")


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The classes that a program of some jars loads; a file beside them."""

    path: Path

    @classmethod
    def of(cls, jars: Path, java: Path) -> ClassArchive:
        """Name the archive of the jars in a folder, for this `java` and no other."""
        found = java.resolve()
        status = found.stat()
        java_id = f"{found} {status.st_size} {status.st_mtime_ns}"
        digest = hashlib.sha256(java_id.encode()).hexdigest()[:12]
        return cls(jars.with_name(f"{jars.name}-{digest}.jsa"))

    @property
    def exists(self) -> bool:
        """Whether it was made."""
        return self.path.is_file()

    @property
    def options_to_read(self) -> tuple[str, ...]:
        """Java's options for a start with it; none where it does not exist."""
        return (f"-XX:SharedArchiveFile={self.path}", *_QUIETLY) if self.exists else ()

    @property
    def options_to_write(self) -> tuple[str, ...]:
        """Java's options for a run that makes it at its end, which takes some seconds."""
        return (f"-XX:ArchiveClassesAtExit={self.path}", *_QUIETLY)
