"""The metrics of one process, as one collector for a registry of Prometheus."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Lock
from typing import Final

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from shieldtx.errors import ConfigurationError
from shieldtx.metrics.consumer_metrics import ConsumerMetrics, GroupMeter, MeteredSubscriber
from shieldtx.metrics.metered_relay import MeteredLeaseStore, MeteredPublisher, MeteredRelayStore
from shieldtx.metrics.relay_metrics import RelayMetrics
from shieldtx.ports.broker import Publisher, Subscriber
from shieldtx.ports.meters import AttemptMeter
from shieldtx.ports.relay import LeaseStore, RelayStore

_SHARED: Final = ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir")
"""Variables that make prometheus_client write all its values into files of several processes."""


class ProcessMetrics(Collector):
    """All metrics of a service's relays and consumers in this process, with the label `service`."""

    def __init__(self, *, service: str, version: str) -> None:
        """Count nothing yet. Raises ConfigurationError if prometheus_client counts into files."""
        if shared := [name for name in _SHARED if name in os.environ]:
            raise ConfigurationError(
                f"{shared[0]} is set: prometheus_client then puts the values of several processes "
                "into common files, and shieldtx's metrics belong to one process. Unset it in the "
                "processes of relays and consumers, or run them without metrics"
            )
        self._service = service
        self._version = version
        self._of_relays = CollectorRegistry(auto_describe=True)
        self._of_consumers = CollectorRegistry(auto_describe=True)
        self._relay = RelayMetrics(self._of_relays)
        self._consumer = ConsumerMetrics(self._of_consumers)
        self._lock = Lock()
        self._shown: list[CollectorRegistry] = []
        """The metrics of what this process runs: a consumer has no shards, not 0."""
        self._last_successes: dict[str, Callable[[], Mapping[str, float]]] = {}
        """By worker: the Unix times at which each of its jobs last succeeded."""

    def of_relay(
        self, store: RelayStore, leases: LeaseStore, publisher: Publisher
    ) -> tuple[RelayStore, LeaseStore, Publisher]:
        """Return the ports of a relay, with metrics."""
        self._show(self._of_relays)
        return (
            MeteredRelayStore(store, self._relay),
            MeteredLeaseStore(leases, self._relay),
            MeteredPublisher(publisher, self._relay),
        )

    def of_consumer(
        self, subscriber: Subscriber, group: str, *, topic_prefix: str
    ) -> tuple[Subscriber, AttemptMeter]:
        """Return the subscriber of a consumer with metrics, and the meter of its attempts."""
        self._show(self._of_consumers)
        return (
            MeteredSubscriber(subscriber, self._consumer, group=group),
            GroupMeter(self._consumer, group=group, topic_prefix=topic_prefix),
        )

    def add_worker(self, name: str, last_successes: Callable[[], Mapping[str, float]]) -> None:
        """Show the times at which each job of a worker last succeeded."""
        with self._lock:
            self._last_successes[name] = last_successes

    def describe(self) -> Iterable[Metric]:
        """Return all metrics that there may be: a registry refuses names that it has already."""
        return [
            *self._of_relays.collect(),
            *self._of_consumers.collect(),
            self._build_info(),
            self._successes(),
        ]

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of what this process runs, with the label `service`."""
        with self._lock:
            shown = list(self._shown)
        for registry in shown:
            for metric in registry.collect():
                yield self._labelled(metric)
        yield self._labelled(self._build_info())
        yield self._labelled(self._successes())

    def _show(self, registry: CollectorRegistry) -> None:
        with self._lock:
            if registry not in self._shown:
                self._shown.append(registry)

    def _build_info(self) -> Metric:
        info = GaugeMetricFamily(
            "shieldtx_build_info", "The version of shieldtx; always 1.", labels=["version"]
        )
        info.add_metric([self._version], 1)
        return info

    def _successes(self) -> Metric:
        # Prometheus gives each sample the label `job` itself.
        successes = GaugeMetricFamily(
            "shieldtx_worker_last_success_timestamp_seconds",
            "Unix time at which a job of a worker last succeeded.",
            labels=["worker", "worker_job"],
        )
        with self._lock:
            workers = list(self._last_successes.items())
        for worker, last_successes in workers:
            for job, at in last_successes().items():
                successes.add_metric([worker, job], at)
        return successes

    def _labelled(self, metric: Metric) -> Metric:
        """Return a metric whose samples also name the service."""
        labelled = Metric(metric.name, metric.documentation, metric.type, metric.unit)
        labelled.samples = [
            sample._replace(labels={**sample.labels, "service": self._service})
            for sample in metric.samples
        ]
        return labelled
