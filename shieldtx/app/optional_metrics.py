"""The metrics of a process, which its workers count only once they are registered."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from threading import Lock
from typing import TYPE_CHECKING, Any

from shieldtx._extras import import_extra
from shieldtx.errors import ConfigurationError
from shieldtx.scheduling.worker_probe import WorkerProbe
from shieldtx.settings.settings import Settings

if TYPE_CHECKING:
    from shieldtx.metrics.process_metrics import ProcessMetrics


class OptionalMetrics:
    """The metrics of this process's relays and consumers, as a collector of prometheus_client.

    `REGISTRY.register(shield.metrics)` makes the workers count that are built after it, as the HTTP
    endpoints do with a registry of their own.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = Lock()
        self._metrics: ProcessMetrics | None = None
        self._has_workers_without = False

    def describe(self) -> Iterable[Any]:
        """Begin to count; a registry calls this when the metrics are registered.

        Raises ConfigurationError where a worker was built before, which counts nothing.
        """
        return self._in_use().describe()

    def collect(self) -> Iterable[Any]:
        """Return all metrics, with the label `service`; raises like `describe`."""
        return self._in_use().collect()

    def of_worker(self) -> ProcessMetrics | None:
        """Return the metrics for a worker that is about to be built; None: it counts nothing."""
        with self._lock:
            self._has_workers_without = self._metrics is None
            return self._metrics

    def add(self, probe: WorkerProbe) -> None:
        """Show when the jobs of a worker last succeeded, if anything is counted."""
        if (metrics := self.of_worker()) is not None:
            metrics.add_worker(probe.name, probe.last_successes)

    def _in_use(self) -> ProcessMetrics:
        with self._lock:
            if self._has_workers_without and self._metrics is None:
                raise ConfigurationError(
                    "shield.metrics is registered after a worker was built, which counts nothing: "
                    "register it before the workers start, or set SHIELDTX_HTTP"
                )
            return self._made()

    def _made(self) -> ProcessMetrics:
        if self._metrics is None:
            with import_extra("the metrics of a worker"):
                from shieldtx.metrics.process_metrics import ProcessMetrics  # noqa: PLC0415

            self._metrics = ProcessMetrics(
                service=self._settings.source, version=version("shieldtx")
            )
        return self._metrics
