"""Up to when earlier runs have judged, and which events no run has judged or can judge any more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from shieldtx.reconcile.expectations import Stream
from shieldtx.reconcile.window import Window

Watermarks = Mapping[str, datetime]
"""By service: up to when a run has judged all of its events."""


def unjudged_spans(windows: Mapping[Stream, Window], earlier: Sequence[Watermarks]) -> list[str]:
    """Say in sentences between which times no run has judged, and rows may have been purged since.

    `earlier` has the watermarks of each run that has ended, good or not: what a run could not judge
    is in its report. Without an earlier run of both services, nothing is known of the time before.
    """
    spans = {
        (stream.upstream, stream.downstream): (until, window.horizon)
        for stream, window in windows.items()
        if window.horizon is not None
        if (until := _judged_until(stream, earlier)) is not None and until < window.horizon
    }
    return [_sentence(*services, *span) for services, span in spans.items()]


def _judged_until(stream: Stream, earlier: Sequence[Watermarks]) -> datetime | None:
    return max(_watermarks_of(stream, earlier), default=None)


def _watermarks_of(stream: Stream, earlier: Iterable[Watermarks]) -> Iterator[datetime]:
    """Yield up to when each run has judged a stream.

    A service's watermark is the earliest of its streams, so that of this stream is no earlier.
    """
    for run in earlier:
        if stream.upstream in run and stream.downstream in run:
            yield max(run[stream.upstream], run[stream.downstream])


def _sentence(upstream: str, downstream: str, since: datetime, until: datetime) -> str:
    return (
        f"no run has judged the events between {upstream} and {downstream} from "
        f"{since:%Y-%m-%d %H:%M:%S%z} to {until:%Y-%m-%d %H:%M:%S%z}: no run took place in time, "
        "or a transaction ran for so long that all of them were in flight, and their rows may have "
        "been purged since. What was lost then is not reported: compare that time by other means. "
        "The next run begins after it; reconcile more often than the shortest retention"
    )
