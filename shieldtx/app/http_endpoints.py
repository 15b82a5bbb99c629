"""The HTTP endpoints of the workers of a process, if SHIELDTX_HTTP asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from shieldtx._extras import import_extra
from shieldtx.app.application import ShieldTx
from shieldtx.scheduling.worker import Worker
from shieldtx.scheduling.worker_probe import WorkerProbe


class WatchedWorkers:
    """The workers for which the endpoints answer."""

    def __init__(self) -> None:
        self.address: str | None = None
        """Where the endpoints are open; None: nowhere."""
        self._probes: list[WorkerProbe] = []

    def add(self, worker: Worker) -> None:
        """Answer for a worker too, which is about to run."""
        self._probes.append(worker.probe)

    def why_not_live(self) -> str:
        """Return why a restart would help, "" where it would not."""
        return next(filter(None, (probe.why_not_live() for probe in self._probes)), "")

    def why_not_ready(self) -> str:
        """Return what does not work, "" where all workers do."""
        if not self._probes:
            return "no worker runs yet"
        return next(filter(None, (probe.why_not_ready() for probe in self._probes)), "")


@contextmanager
def http_endpoints(app: ShieldTx) -> Iterator[WatchedWorkers]:
    """Serve metrics and probes during the block, for the workers that are added in it.

    Enter it before whatever waits for the broker: an orchestrator asks from the start on. Raises
    ConfigurationError where SHIELDTX_HTTP cannot be listened at.
    """
    watched = WatchedWorkers()
    if app.settings.http is None:
        yield watched
        return
    with import_extra("SHIELDTX_HTTP"):
        from shieldtx.metrics.http_server import endpoints  # noqa: PLC0415  an extra

    with endpoints(
        app.settings.http,
        metrics=app.metrics,
        why_not_live=watched.why_not_live,
        why_not_ready=watched.why_not_ready,
    ) as watched.address:
        yield watched
