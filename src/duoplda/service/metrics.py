"""What Prometheus reads: counts and times of requests, and decisions. No name of a voice is among them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.process_collector import ProcessCollector

PROMETHEUS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """The counters of one service."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)  # memory, processor time, open files
        labels = ["method", "route", "status"]
        self.requests = Counter("duoplda_requests", "Requests that were answered.", labels, registry=self.registry)
        self.seconds = Histogram(
            "duoplda_request_seconds", "Time to answer.", ["route"], buckets=SECONDS, registry=self.registry
        )
        self.in_flight = Gauge("duoplda_requests_in_flight", "Requests at this moment.", registry=self.registry)
        self.decisions = Counter("duoplda_decisions", "Answers to who is it.", ["decision"], registry=self.registry)
