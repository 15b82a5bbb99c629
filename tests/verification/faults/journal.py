"""The journal of the bank's clients: each answer is on disk before the client continues."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from uuid import UUID

Answer = Literal["ok", "fail", "info"]
"""ok: committed; fail: surely not; info: unknown, the answer to COMMIT was lost."""


class Journal:
    """Appends lines that survive any kill of their writer; one object for each client."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def begin(self, *operations: UUID) -> None:
        """Note that operations of one transaction are about to be tried."""
        self._append(operations, "begin")

    def end(self, *operations: UUID, answer: Answer) -> None:
        """Note the outcome of the operations."""
        self._append(operations, answer)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _append(self, operations: Sequence[UUID], what: str) -> None:
        lines = [f"{json.dumps({'id': str(o), 'what': what})}\n" for o in operations]
        # One write of whole lines, so that the lines of several clients never mix.
        os.write(self._file, "".join(lines).encode())
        os.fsync(self._file)


@dataclass(frozen=True, kw_only=True, slots=True)
class Operations:
    """The journal's answer for every operation; an operation without an answer counts as info."""

    answers: dict[UUID, Answer]

    @classmethod
    def read(cls, path: Path) -> Operations:
        """Read a journal; a line that was cut off by a kill is not an answer."""
        answers: dict[UUID, Answer] = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            answers[UUID(entry["id"])] = "info" if entry["what"] == "begin" else entry["what"]
        return cls(answers=answers)

    def of(self, answer: Answer) -> set[UUID]:
        """Return the operations with this answer."""
        return {operation for operation, ended in self.answers.items() if ended == answer}

    def counts(self) -> Counter[Answer]:
        """Return the number of operations by answer."""
        return Counter(self.answers.values())
