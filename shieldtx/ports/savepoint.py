"""A savepoint in a transaction that several handlers share."""

from __future__ import annotations

from typing import Protocol


class Savepoint(Protocol):
    """A savepoint in the transaction of `effects`, around one or several handlers."""

    def set_again(self, *, is_doubtful: bool = False) -> None:
        """Set the savepoint for further effects, after `undo`, if nothing was written since.

        `is_doubtful` as in `InboxStore.savepoint`.
        """
        ...

    def renew(self, *, is_doubtful: bool = False) -> None:
        """Keep the effects since, and set a savepoint for further effects: as release, and set."""
        ...

    def release(self) -> None:
        """Keep the effects since."""
        ...

    def undo(self) -> bool:
        """Undo all effects since, and prepare the session for the next handler.

        Returns False if a handler has left something that the savepoint does not undo: then the
        whole transaction has to be rolled back.
        """
        ...
