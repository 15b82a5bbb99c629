"""The table of metrics names every metric, its type and its labels, and no others."""

from __future__ import annotations

import re

from prometheus_client import CollectorRegistry

from shieldtx.metrics.batch_histogram import BatchHistogram
from shieldtx.metrics.consumer_metrics import ConsumerMetrics
from shieldtx.metrics.guard import Guard
from shieldtx.metrics.limited_labels import LimitedLabels
from shieldtx.metrics.process_metrics import ProcessMetrics
from shieldtx.metrics.relay_metrics import RelayMetrics
from tests.support.project import ROOT

Described = tuple[str, tuple[str, ...]]
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| ([^|]*)\|", re.MULTILINE)


def documented() -> dict[str, Described]:
    page = (ROOT / "docs/how-to/metrics.md").read_text(encoding="utf-8")
    return {
        name: (kind, tuple(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels in ROW.findall(page)
    }


def existing() -> dict[str, Described]:
    registry = CollectorRegistry()
    found: dict[str, Described] = {}
    for metrics in (RelayMetrics(registry), ConsumerMetrics(registry)):
        for metric in vars(metrics).values():
            if isinstance(metric, LimitedLabels | Guard):
                continue
            (family,) = metric.describe()
            suffix = "_total" if family.type == "counter" else ""
            labels = metric._labels if isinstance(metric, BatchHistogram) else metric._labelnames
            found[f"{family.name}{suffix}"] = (family.type, tuple(labels))
    of_process = ProcessMetrics(service="shop", version="1")
    of_process.add_worker("relay", lambda: {"poll": 1.0})
    for family in of_process.collect():
        labels = tuple(name for name in family.samples[0].labels if name != "service")
        found[family.name] = (family.type, labels)
    return found


def test_page_names_each_metric_with_its_type_and_labels() -> None:
    assert documented() == existing()
