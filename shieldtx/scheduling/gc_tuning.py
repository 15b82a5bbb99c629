"""The garbage collector of a worker process."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_OBJECTS_BETWEEN_COLLECTIONS: Final = 200_000


@contextmanager
def few_collections() -> Iterator[None]:
    """Let the garbage collector look seldom, and at nothing that was there before.

    A batch is some ten thousands of objects, none of them in a circle, which come and go together:
    to look for circles among them, and among all that was imported, takes a good part of a relay's
    time.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
