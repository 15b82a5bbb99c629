"""The garbage collector of a worker process."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_OBJECTS_BETWEEN_COLLECTIONS: Final = 200_000
_FROZEN_BY_NOBODY: Final = 5_000
"""CPython 3.12 starts with some hundreds of frozen objects; an application that freezes adds more.
"""


@contextmanager
def few_collections() -> Iterator[None]:
    """Make the garbage collector run rarely, and skip all objects that exist already.

    A batch consists of tens of thousands of objects without cycles, which are freed together.
    Searching these objects and all imported modules for cycles takes a large part of a relay's
    time.
    """
    threshold = gc.get_threshold()
    # Objects are unfrozen all together: those of a host that froze its own stay frozen.
    is_frozen = gc.get_freeze_count() > _FROZEN_BY_NOBODY
    if not is_frozen:
        gc.collect()
        gc.freeze()
    if threshold[0]:
        # A threshold of 0 means that the host disabled collections; they stay disabled.
        gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS, *threshold[1:])
    try:
        yield
    finally:
        gc.set_threshold(*threshold)
        if not is_frozen:
            gc.unfreeze()


def free_failed_pass() -> None:
    """Free the objects of a failed pass, whose error keeps them in reference cycles.

    Collections are so rare that an outage of the database would accumulate 40 MB in a relay between
    two of them. Call it when nothing refers to the error any more: objects that survive a
    collection count as old, and the next one skips them.
    """
    gc.collect(0)
