"""Archives of classes, with which a Java program starts in half the time (JEP 350).

Java trusts an archive and crashes on a damaged one, so each is read only if it is as it was made.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# A start without the archive, as where the jars lie elsewhere now, is no news to anybody.
_QUIETLY: Final = ("-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassArchive:
    """The classes that a program loads, in a file beside its jars, and a file with its digest."""

    path: Path
    jars: Path
    java: Path

    @classmethod
    def of(cls, jars: Path, java: Path) -> ClassArchive:
        """Name the archive of a folder of jars; the last Java that was used to make it counts."""
        return cls(path=jars.with_name(f"{jars.name}.jsa"), jars=jars, java=java)

    @property
    def is_good(self) -> bool:
        """Whether it was made by this Java of these jars, and is what it was then."""
        try:
            return self._noted.read_bytes() == self._digest(self.path).encode()
        except OSError:
            return False

    @property
    def options_to_read(self) -> tuple[str, ...]:
        """Java's options for a start with it; none where it is not good."""
        return (f"-XX:SharedArchiveFile={self.path}", *_QUIETLY) if self.is_good else ()

    @property
    def part(self) -> Path:
        """Where it is while it is being made."""
        return self.path.with_suffix(".part")

    @property
    def options_to_make(self) -> tuple[str, ...]:
        """Java's options for a run that makes `part` at its end, which takes some seconds."""
        return (f"-XX:ArchiveClassesAtExit={self.part}", *_QUIETLY)

    def keep(self) -> None:
        """Put `part`, which is complete, in the place of what was there."""
        digest = self._digest(self.part)
        # Until its own digest is complete, after a crash too, the new archive is not good.
        self.part.replace(self.path)
        self._noted.write_text(digest, encoding="ascii")

    @property
    def _noted(self) -> Path:
        return self.path.with_suffix(".sha256")

    def _digest(self, archive: Path) -> str:
        """Digest what Java examines, the program and the jars in their order, and the content."""
        java = self.java.resolve()
        files = [java, *self.jars.iterdir()]
        made_of = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
        digest = hashlib.sha256(repr(made_of).encode())
        with archive.open("rb") as content:
            return hashlib.file_digest(content, lambda: digest).hexdigest()
