"""The parts of a requested window (--since, --until) that a run cannot judge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from shieldtx.reconcile.expectations import Stream
from shieldtx.reconcile.request import Selection
from shieldtx.reconcile.window import Window

_TIME: Final = "%Y-%m-%d %H:%M:%S%z"


def unjudged_of(
    asked: Selection, windows: Mapping[Stream, Window], alone: Mapping[str, Window]
) -> list[str]:
    """Return one sentence for each part of the requested window that the run cannot judge.

    Without --until, a later run judges the events in flight, as every night. Without --since,
    earlier runs have judged the purged events. In both cases a part of the window must remain to be
    judged. `alone` has the windows of services that are compared only with topics.
    """
    told: dict[str, None] = {}
    for events, window in _events(windows, alone):
        if purged := _purged(asked, window):
            told[
                f"{events} that were written {purged} could not be judged: their rows may have "
                "been purged, and what was lost of them shows no more. Compare that time by other "
                "means"
            ] = None
        if to_come := _to_come(asked, window):
            told[
                f"{events} that were written {to_come} could not be judged yet: they are in "
                "flight, or still to come. Run this again later"
            ] = None
    return list(told)


def _events(
    windows: Mapping[Stream, Window], alone: Mapping[str, Window]
) -> Iterator[tuple[str, Window]]:
    for stream, window in windows.items():
        first, second = sorted((stream.upstream, stream.downstream))
        yield f"events between {first} and {second}", window
    for service, window in alone.items():
        yield f"events of {service}", window


def _purged(asked: Selection, window: Window) -> str:
    """Return the part of the requested window whose rows may have been purged; empty if none."""
    horizon, since, until = window.horizon, asked.written_since, asked.written_until
    if horizon is None:
        return ""
    if since is not None and since < horizon:
        end = min(horizon, until) if until is not None else horizon
        return f"from {since:{_TIME}} to {end:{_TIME}}"
    if since is None and until is not None and until <= horizon:
        return f"before {until:{_TIME}}"
    return ""


def _to_come(asked: Selection, window: Window) -> str:
    """Return the part of the requested window that is in flight or in the future; empty if none."""
    watermark, since, until = window.watermark, asked.written_since, asked.written_until
    if watermark is None:
        return ""
    if until is not None and until > watermark:
        start = max(watermark, since) if since is not None else watermark
        return f"from {start:{_TIME}} to {until:{_TIME}}"
    if until is None and since is not None and since >= watermark:
        return f"from {since:{_TIME}} on"
    return ""
