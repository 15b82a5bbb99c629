"""A client's transaction, and what the client can know about its outcome."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from tests.verification.faults.journal import Answer, Journal

SERIALIZATION_FAILURE = "40001"
DEADLOCK_DETECTED = "40P01"
ROLLED_BACK = {SERIALIZATION_FAILURE, DEADLOCK_DETECTED}
"""The server has rolled back when it reports these codes, even in answer to a COMMIT."""


@contextmanager
def journaled(
    engine: Engine, journal: Journal, *operations: UUID, twophase: bool = False
) -> Iterator[Session]:
    """Run a block in a transaction and commit it; note the outcome of its operations."""
    journal.begin(*operations)
    answer: Answer = "fail"
    try:
        with Session(engine, twophase=twophase) as session:
            yield session
            answer = "info"
            session.commit()
            answer = "ok"
    except DBAPIError as error:
        if sqlstate(error) in ROLLED_BACK:
            answer = "fail"
        raise
    finally:
        journal.end(*operations, answer=answer)


def sqlstate(error: DBAPIError) -> str | None:
    """Return the code of a server's error; None where the connection was lost."""
    code: str | None = getattr(error.orig, "sqlstate", None)
    return code
