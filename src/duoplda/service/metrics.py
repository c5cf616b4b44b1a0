"""The metrics for Prometheus: counts and times of requests, and counts of decisions. No name of a voice is in them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.process_collector import ProcessCollector

PROMETHEUS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """The metrics of one service."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)  # memory, processor time, open files
        labels = ["method", "route", "status"]
        self.requests = Counter("duoplda_requests", "Answered requests.", labels, registry=self.registry)
        self.seconds = Histogram(
            "duoplda_request_seconds",
            "Seconds until a request was answered.",
            ["route"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.in_flight = Gauge(
            "duoplda_requests_in_flight", "Requests that the service is working on.", registry=self.registry
        )
        self.decisions = Counter(
            "duoplda_decisions", "Decisions of identifications and verifications.", ["decision"], registry=self.registry
        )
