"""Figures for Prometheus: counts of requests, and what the ledger's entries say. No durations: they can depend on records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from teacher.service.desk import Desk


class Metrics:
    """The figures of one service."""

    def __init__(self, desk: Desk) -> None:
        self._registry, self._desk = CollectorRegistry(), desk
        labels = ["method", "route", "status"]
        self._requests = Counter("labelwall_requests", "Requests answered", labels, registry=self._registry)
        self._registry.register(self)

    def answered(self, method: str, route: str, status: int) -> None:
        """Count a request. ``route``: its pattern, not the address that was asked for."""
        self._requests.labels(method, route, str(status)).inc()

    def text(self) -> bytes:
        """All figures in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """What is read when asked for."""
        figures = self._desk.figures
        for name, values, text in (
            ("spent", figures.spent, "Releases charged"),
            ("left", figures.left, "Releases not yet charged"),
        ):
            family = GaugeMetricFamily(f"labelwall_releases_{name}", text, labels=["slot", "release"])
            for (slot, release), value in values.items():
                family.add_metric([str(slot), release], value)
            yield family
        yield GaugeMetricFamily("labelwall_ledger_position", "Number of the ledger's newest entry", value=figures.position)
        yield GaugeMetricFamily("labelwall_waiting", "Requests that wait for the teacher", value=self._desk.waiting)
