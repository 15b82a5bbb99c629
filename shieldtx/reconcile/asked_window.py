"""What of the time that a run was asked for, with --since and --until, it cannot judge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shieldtx.reconcile.expectations import Stream
from shieldtx.reconcile.request import Selection
from shieldtx.reconcile.window import Window

_TIME: Final = "%Y-%m-%d %H:%M:%S%z"


def unjudged_of(asked: Selection, windows: Mapping[Stream, Window]) -> list[str]:
    """Say in sentences which of the time that a run was asked for it cannot judge.

    Without an end, what is in flight is left to a later run, as it is every night.
    """
    told: dict[str, None] = {}
    for stream, window in windows.items():
        first, second = sorted((stream.upstream, stream.downstream))
        between = f"events between {first} and {second}"
        since, until = asked.written_since, asked.written_until
        if window.horizon is not None and since is not None and since < window.horizon:
            end = min(window.horizon, until) if until is not None else window.horizon
            told[
                f"{between} that were written from {since:{_TIME}} to {end:{_TIME}} could not be "
                "judged: their rows may have been purged, and what was lost of them shows no more. "
                "Compare that time by other means"
            ] = None
        if window.watermark is not None and until is not None and until > window.watermark:
            start = max(window.watermark, since) if since is not None else window.watermark
            told[
                f"{between} that were written from {start:{_TIME}} to {until:{_TIME}} could not be "
                "judged yet: they are in flight, or still to come. Run this again later"
            ] = None
    return list(told)
