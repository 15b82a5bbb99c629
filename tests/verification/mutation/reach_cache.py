"""The lines that tests reach, kept between runs for files of tests that have not changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests.verification.mutation.reach import Reach

ROOT = Path(__file__).parents[3]
_EVERYTHING = ("shieldtx", "migrations", "tests/support", "tests/verification/simulation")
"""Code that tests of many files use: a change in it invalidates the whole cache."""


class ReachCache:
    """Stores the measurements, by the file of the tests."""

    def __init__(self, file: Path, paths: Sequence[str]) -> None:
        """Use `file` for the measurements of the modules at `paths`."""
        self._file = file
        self._used = _digest([*paths, *_python_files(_EVERYTHING)])

    def load(self, tests: Iterable[str]) -> Reach:
        """Return the measurements of those test files that have not changed."""
        found = Reach()
        if not self._file.is_file():
            return found
        stored = json.loads(self._file.read_text())
        if stored["used"] != self._used:
            return found
        for test in set(tests):
            of_file = stored["files"].get(test)
            if of_file is None or of_file["digest"] != _digest_of(test):
                continue
            names = list(of_file["seconds"])
            found.seconds.update(of_file["seconds"])
            found.failed.update(of_file["failed"])
            for path, lines in of_file["lines"].items():
                for line, reached in lines.items():
                    found.lines[path][int(line)].update(names[each] for each in reached)
        return found

    def store(self, reach: Reach) -> None:
        """Store the current measurements."""
        files = {}
        for test in {nodeid.partition("::")[0] for nodeid in reach.seconds}:
            seconds = {n: s for n, s in reach.seconds.items() if n.startswith(f"{test}::")}
            files[test] = {
                "digest": _digest_of(test),
                "seconds": seconds,
                "failed": sorted(reach.failed & seconds.keys()),
                "lines": _lines_of(reach, {name: n for n, name in enumerate(seconds)}),
            }
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps({"used": self._used, "files": files}))


def _lines_of(reach: Reach, tests: Mapping[str, int]) -> dict[str, dict[int, list[int]]]:
    """Return the tests that reach each line, as numbers: a tenth of the bytes."""
    found: dict[str, dict[int, list[int]]] = {}
    for path, lines in reach.lines.items():
        for line, reached in lines.items():
            if own := sorted(tests[each] for each in reached & tests.keys()):
                found.setdefault(path, {})[line] = own
    return found


def _python_files(folders: Iterable[str]) -> list[str]:
    return [str(path) for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def _digest_of(test: str) -> str:
    file = ROOT / test
    return _digest([str(file), *(str(p) for p in ROOT.glob("tests/**/conftest.py"))])


def _digest(files: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.encode() + b"\0" + Path(file).read_bytes() + b"\0")
    return digest.hexdigest()
