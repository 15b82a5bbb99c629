"""The savepoint around handlers of a batch, which undoes a refused event alone."""

from __future__ import annotations

from sqlalchemy.orm import Session

from shieldtx.store.guarded_session import undo_event
from shieldtx.store.savepoints import OpenSavepoint


class BatchSavepoint:
    """A savepoint in the session of a batch (the port Savepoint)."""

    def __init__(self, session: Session, *, is_doubtful: bool) -> None:
        self._session = session
        self._open = OpenSavepoint(session, is_doubtful=is_doubtful)

    def renew(self, *, is_doubtful: bool = False) -> None:
        """Keep the effects since, and set the next savepoint."""
        self._open = self._open.next(self._session, is_doubtful=is_doubtful)

    def set_again(self, *, is_doubtful: bool = False) -> None:
        """Set the savepoint for further effects, after `undo`, if nothing was written since."""
        self._open = OpenSavepoint(self._session, kept=self._open.name, is_doubtful=is_doubtful)

    def release(self) -> None:
        """Keep the effects since."""
        self._open.release(self._session)

    def undo(self) -> bool:
        """Undo all effects since; return False if the transaction has to be rolled back."""
        try:
            return self._open.roll_back(self._session) and undo_event(self._session)
        except Exception:  # noqa: BLE001  the caller raises the error of the handler
            return False
