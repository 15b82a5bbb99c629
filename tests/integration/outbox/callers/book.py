"""The book of a case: pairs of a business row and its event, and their legal outcomes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain


class Fate(StrEnum):
    """The outcome of a pair's transaction that the caller knows."""

    OPEN = "its transaction is open"
    KEPT = "its commit reported success"
    GONE = "it was rolled back"
    EITHER = "an error, or a transaction that failed, leaves the end open"


@dataclass(kw_only=True, slots=True)
class Pair:
    number: int
    """The id of the row and the key of the event."""
    accepted: bool = False
    """Whether `add` returned an id."""
    row_is_free: bool = False
    """Whether the row may be there although `add` was refused."""
    row_is_apart: bool = False
    """Whether the row is in another database in AUTOCOMMIT, where no transaction undoes it."""
    row_is_dropped: bool = False
    """Whether the row was an object that its session dropped after its event had been executed."""
    row_may_stay: bool = False
    """Whether the row was committed without SQLAlchemy, or asyncpg commits each statement.

    asyncpg does so after a transaction that ended without SQLAlchemy; the event is committed too.
    """
    fate: Fate = Fate.OPEN

    def judge(self, *, row: bool, event: bool) -> str | None:
        """Return an error text for an illegal outcome, None for a legal one."""
        found = f"pair {self.number}: row {'there' if row else 'missing'}, "
        found += f"event {'there' if event else 'missing'}; {self.fate}; "
        found += "add returned an id" if self.accepted else "add was refused, or not called"
        if self.row_is_apart:
            return found if event else None
        if not self.accepted:
            return found if event or (row and not self.row_is_free) else None
        if self.row_may_stay:
            is_wrong = event and not row and not self.row_is_dropped
            return found if is_wrong or (self.fate is Fate.KEPT and not event) else None
        if row is not event:
            return None if self.row_is_dropped and event else found
        if self.fate is Fate.KEPT and not event:
            return found
        return found if self.fate is Fate.GONE and event else None


@dataclass(slots=True)
class Book:
    """The pairs, by the savepoint in which they were written."""

    pairs: list[Pair] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    failed: bool = False
    """Whether a statement of the open transaction failed, so that its COMMIT is a ROLLBACK."""
    _scopes: list[list[Pair]] = field(default_factory=lambda: [[]])
    _left: list[Pair] = field(default_factory=list)
    """Pairs that their session has committed, and whose connection still has to commit."""

    def enter(self, pair: Pair) -> None:
        """Record that a pair is written in the innermost savepoint."""
        self.pairs.append(pair)
        self._scopes[-1].append(pair)

    def begin(self) -> None:
        self._scopes.append([])

    def release(self) -> None:
        inner = self._scopes.pop()
        self._scopes[-1] += inner

    def undo(self) -> None:
        self._decide(self._scopes.pop(), Fate.GONE)

    def lose(self) -> None:
        """Record that executed statements are rolled back without SQLAlchemy.

        Objects may still be flushed.
        """
        self._decide(chain(self._left, *self._scopes), Fate.EITHER)

    def doubt(self, numbers: Collection[int]) -> None:
        """Record that the outcome of some pairs is open, whatever their transaction reports."""
        self._decide([pair for pair in self.pairs if pair.number in numbers], Fate.EITHER)

    def leave(self) -> None:
        """Record that the session committed; the owner of its connection decides the outcome."""
        self._left += chain.from_iterable(self._scopes)
        self._scopes = [[]]

    def end(self, fate: Fate) -> None:
        """Record that the transaction ended; with a failed statement, its COMMIT rolled it back."""
        if self.failed and fate is Fate.KEPT:
            fate = Fate.EITHER
        self.close(fate)
        self._decide(self._left, fate)
        self._left, self.failed = [], False

    def close(self, fate: Fate) -> None:
        """Record that the session was closed, with its uncommitted pairs."""
        self._decide(chain.from_iterable(self._scopes), fate)
        self._scopes = [[]]

    def _decide(self, pairs: Iterable[Pair], fate: Fate) -> None:
        for pair in pairs:
            if pair.fate is Fate.OPEN:
                pair.fate = fate

    def wrong(self, rows: set[int], events: set[int]) -> Iterator[str]:
        """Yield the illegal outcomes."""
        for pair in self.pairs:
            found = pair.judge(row=pair.number in rows, event=pair.number in events)
            if found is not None:
                yield found
