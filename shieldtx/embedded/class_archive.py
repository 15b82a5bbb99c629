"""Archives of classes, which halve the start time of a Java program (JEP 350).

Java trusts an archive and crashes on a damaged one. So an archive is read only if it is unchanged.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# A start without the archive, for example after the jars were moved, is not worth a warning.
_QUIETLY: Final = ("-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassArchive:
    """The classes that a program loads, in a file next to its jars, and a file with its digest."""

    path: Path
    jars: Path
    java: Path

    @classmethod
    def of(cls, jars: Path, java: Path) -> ClassArchive:
        """Return the archive of a folder of jars; the last Java that made it counts."""
        return cls(path=jars.with_name(f"{jars.name}.jsa"), jars=jars, java=java)

    @property
    def is_good(self) -> bool:
        """Whether this Java made it from these jars, and it is unchanged."""
        try:
            return self._noted.read_bytes() == self._digest(self.path).encode()
        except OSError:
            return False

    @property
    def options_to_read(self) -> tuple[str, ...]:
        """Java's options for a start with the archive; none if it is not good."""
        return (f"-XX:SharedArchiveFile={self.path}", *_QUIETLY) if self.is_good else ()

    @property
    def part(self) -> Path:
        """Path of the archive while it is being made."""
        return self.path.with_suffix(".part")

    @property
    def options_to_make(self) -> tuple[str, ...]:
        """Java's options for a run that makes `part` at its end, which takes some seconds."""
        return (f"-XX:ArchiveClassesAtExit={self.part}", *_QUIETLY)

    def keep(self) -> None:
        """Replace the archive by `part`, which is complete."""
        digest = self._digest(self.part)
        # The new archive is not good until its own digest is complete, even after a crash.
        self.part.replace(self.path)
        self._noted.write_text(digest, encoding="ascii")

    @property
    def _noted(self) -> Path:
        return self.path.with_suffix(".sha256")

    def _digest(self, archive: Path) -> str:
        """Return a digest of Java's own inputs (program, jars in order) and of the content."""
        java = self.java.resolve()
        files = [java, *self.jars.iterdir()]
        made_of = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
        digest = hashlib.sha256(repr(made_of).encode())
        with archive.open("rb") as content:
            return hashlib.file_digest(content, lambda: digest).hexdigest()
