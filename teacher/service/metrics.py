"""Prometheus metrics: counts of requests and of the ledger's entries.

There are no durations: these can depend on records.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from .service import Service


class Metrics:
    """The metrics of one service."""

    def __init__(self, service: Service) -> None:
        self._registry, self._service = CollectorRegistry(), service
        labels = ["method", "route", "status"]
        self._requests = Counter(
            "labelwall_requests", "Requests answered", labels, registry=self._registry
        )
        self._registry.register(self)

    def count_request(self, method: str, route: str, status: int) -> None:
        """Count a request. ``route``: the route's pattern, not the requested address."""
        self._requests.labels(method, route, str(status)).inc()

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """The metrics that are computed when read."""
        analysts, register = self._service.analysts, self._service.queue
        queues = {} if analysts is None else analysts.open_services()
        own = {name: each.queue for name, each in queues.items()}
        waiting = register.waiting + sum(queue.waiting for queue in own.values())
        labels = ["slot", "release"] if analysts is None else ["analyst", "slot", "release"]
        ledgers = [([], register)] if analysts is None else [([n], q) for n, q in own.items()]
        spent = GaugeMetricFamily("labelwall_releases_spent", "Releases charged", labels=labels)
        left = GaugeMetricFamily("labelwall_releases_left", "Releases not charged", labels=labels)
        for name, queue in ledgers:
            snapshot = queue.snapshot
            for family, counts in ((spent, snapshot.spent), (left, snapshot.remaining)):
                for (slot, release), value in counts.items():
                    family.add_metric([*name, str(slot), release], value)
        yield from (spent, left)
        for metric, text, value in (
            ("ledger_position", "Number of the ledger's newest entry", register.snapshot.position),
            ("waiting", "Requests that wait for the teacher", waiting),
        ):
            yield GaugeMetricFamily(f"labelwall_{metric}", text, value=value)
        if (scale := self._service.settings.scale).shards:
            text = "Parts in which the private rows lie"
            shards = GaugeMetricFamily("labelwall_shards", text, labels=["backend"])
            shards.add_metric([scale.backend], scale.shards)
            yield shards
