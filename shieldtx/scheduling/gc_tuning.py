"""The garbage collector of a worker process."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_OBJECTS_BETWEEN_COLLECTIONS: Final = 200_000
_FROZEN_BY_NOBODY: Final = 5_000
"""CPython 3.12 begins with some hundreds of frozen objects; who freezes an application has more."""


@contextmanager
def few_collections() -> Iterator[None]:
    """Let the garbage collector look seldom, and at nothing that was there before.

    A batch is some ten thousands of objects, none of them in a circle, which come and go together:
    to look for circles among them, and among all that was imported, takes a good part of a relay's
    time.
    """
    threshold = gc.get_threshold()
    # Objects are thawed all together: a host that has frozen its own keeps them frozen.
    is_frozen = gc.get_freeze_count() > _FROZEN_BY_NOBODY
    if not is_frozen:
        gc.collect()
        gc.freeze()
    if threshold[0]:
        # Who has switched collections off wants none.
        gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS, *threshold[1:])
    try:
        yield
    finally:
        gc.set_threshold(*threshold)
        if not is_frozen:
            gc.unfreeze()


def free_failed_pass() -> None:
    """Free what a pass worked with whose error keeps it in reference cycles.

    Between two of the few collections, an outage of the database would pile up 40 MB in a relay. To
    be called when nothing refers to the error any more: what is there during a collection counts
    as old, and is not looked at by the next one.
    """
    gc.collect(0)
