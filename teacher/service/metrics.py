"""Figures for Prometheus: counts of requests, and what the ledger's entries say. No durations: they can depend on records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from labelwall.teacher.service.queue import Figures
    from labelwall.teacher.service.state import Service


class Metrics:
    """The figures of one service."""

    def __init__(self, service: Service) -> None:
        self._registry, self._service = CollectorRegistry(), service
        labels = ["method", "route", "status"]
        self._requests = Counter(
            "labelwall_requests", "Requests answered", labels, registry=self._registry
        )
        self._registry.register(self)

    def answered(self, method: str, route: str, status: int) -> None:
        """Count a request. ``route``: its pattern, not the address that was asked for."""
        self._requests.labels(method, route, str(status)).inc()

    def text(self) -> bytes:
        """All figures in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """What is read when asked for."""
        desk, analysts = self._service.desk, self._service.analysts
        opened = (
            {}
            if analysts is None
            else {name: service.desk for name, service in analysts.open_ones().items()}
        )
        yield from _releases(
            [([], desk.figures)]
            if analysts is None
            else [([name], own.figures) for name, own in opened.items()]
        )
        position, waiting = (
            desk.figures.position,
            desk.waiting + sum(own.waiting for own in opened.values()),
        )
        yield GaugeMetricFamily(
            "labelwall_ledger_position", "Number of the ledger's newest entry", value=position
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


def _releases(ledgers: list[tuple[list[str], Figures]]) -> Iterator[Metric]:
    """Spent and left by ledger. A ledger is labelled by its analyst, or is the only one."""
    labels = ["analyst"] * len(ledgers[0][0]) if ledgers else []
    for name, text in (("spent", "Releases charged"), ("left", "Releases not yet charged")):
        family = GaugeMetricFamily(
            f"labelwall_releases_{name}", text, labels=[*labels, "slot", "release"]
        )
        for whose, figures in ledgers:
            for (slot, release), value in (
                figures.spent if name == "spent" else figures.left
            ).items():
                family.add_metric([*whose, str(slot), release], value)
        yield family
