"""Prometheus metrics: counts of requests and of the ledger's entries.

There are no durations: these can depend on records.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from .snapshot import Snapshot
from .state import Service


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
        queue, analysts = self._service.queue, self._service.analysts
        if analysts is None:
            waiting = queue.waiting
            yield from _releases([([], queue.snapshot)])
        else:
            queues = {name: each.queue for name, each in analysts.open_services().items()}
            waiting = queue.waiting + sum(each.waiting for each in queues.values())
            yield from _releases([([name], each.snapshot) for name, each in queues.items()])
        yield GaugeMetricFamily(
            "labelwall_ledger_position",
            "Number of the ledger's newest entry",
            value=queue.snapshot.position,
        )
        if (scale := self._service.scale).shards:
            shards = GaugeMetricFamily(
                "labelwall_shards", "Parts in which the private rows lie", labels=["backend"]
            )
            shards.add_metric([scale.backend], scale.shards)
            yield shards
        yield GaugeMetricFamily(
            "labelwall_waiting", "Requests that wait for the teacher", value=waiting
        )


def _releases(ledgers: list[tuple[list[str], Snapshot]]) -> Iterator[Metric]:
    """Spent and remaining releases of ledgers, each with its analyst's name or, if single, none."""
    labels = ["analyst"] * len(ledgers[0][0]) if ledgers else []
    labels += ["slot", "release"]
    spent = GaugeMetricFamily("labelwall_releases_spent", "Releases charged", labels=labels)
    left = GaugeMetricFamily("labelwall_releases_left", "Releases not yet charged", labels=labels)
    for analyst, snapshot in ledgers:
        for family, counts in ((spent, snapshot.spent), (left, snapshot.remaining)):
            for (slot, release), value in counts.items():
                family.add_metric([*analyst, str(slot), release], value)
    yield from (spent, left)
