"""The queries that run while Spark starts, which takes as long.

The clocks come first: the guarantee of a watermark is only for later reads. Then come the digests,
if the run judges all events.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from shieldtx.reconcile.request import ReconcileRequest
from shieldtx.reconcile.window import Clock, memories_of

from .compare.digests import Digests, digests_of
from .sources.server_checks import Servers

_CANCEL_EVERY_S = 0.2


@dataclass(frozen=True, kw_only=True, slots=True)
class Prefetch:
    """A run and its pending queries; waiting for a result may raise the database's error."""

    request: ReconcileRequest
    started_at: datetime
    clocks: Future[Mapping[str, Clock]]
    digests: Future[Digests] | None
    """None if no digests are compared."""


@contextmanager
def prefetching(request: ReconcileRequest) -> Iterator[Prefetch]:
    """Start the queries; cancel the unfinished ones at the end of the block."""
    servers = Servers(request=request)
    # One after the other: no digest is older than a clock.
    with ThreadPoolExecutor(1) as asking:
        compares = request.push_down and request.selection.is_everything
        clocks = asking.submit(servers.clocks)
        prefetch = Prefetch(
            request=request,
            started_at=datetime.now(UTC),
            clocks=clocks,
            digests=asking.submit(_digests, servers, clocks) if compares else None,
        )
        try:
            yield prefetch
        finally:
            asking.shutdown(wait=False, cancel_futures=True)
            _give_up(
                servers, [each for each in (prefetch.clocks, prefetch.digests) if each is not None]
            )


def _digests(servers: Servers, clocks: Future[Mapping[str, Clock]]) -> Digests:
    return digests_of(servers, memories_of(clocks.result(), margin=servers.request.margin))


def _give_up(servers: Servers, answers: Collection[Future[Any]]) -> None:
    """Cancel until all queries have ended: a statement may just be on its way to its server."""
    while open_ := [each for each in answers if not each.done()]:
        servers.cancel()
        wait(open_, timeout=_CANCEL_EVERY_S)
