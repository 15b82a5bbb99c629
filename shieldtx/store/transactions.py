"""Transactions that are repeated if the server aborts them because of concurrent transactions."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from itertools import count
from typing import Final, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from shieldtx.domain.reasons import reason_of
from shieldtx.store.dialects import dialect_of

log = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

TRIES: Final = 6
_FIRST_PAUSE_S: Final = 0.1


def in_transaction(engine: Engine, work: Callable[[Connection], ResultT], *, doing: str) -> ResultT:
    """Run `work` in a transaction, and repeat it if the server rolls it back for a conflict.

    A deadlock and a serialization failure are conflicts; the log names what `work` was `doing`.
    Raises the server's error after `TRIES`.
    """
    for attempt in count(1):
        try:
            with engine.begin() as connection:
                return work(connection)
        except DBAPIError as error:
            if attempt == TRIES or not dialect_of(engine.dialect).is_conflict(error):
                raise
            log.warning(
                "transaction conflict, tried again",
                extra={
                    "action": "transaction_retried",
                    "doing": doing,
                    "attempt": attempt,
                    "error": reason_of(error),
                },
            )
        # The random pause separates two conflicting transactions.
        time.sleep(_FIRST_PAUSE_S * 2 ** (attempt - 1) * random.uniform(0.5, 1))  # noqa: S311
    raise AssertionError("unreachable")
