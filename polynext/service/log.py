"""Logs, one JSON object per line, and Prometheus metrics.

Both contain at most the first characters of the ids of keys and jobs, and nothing of keys, ciphertexts or tokens.
"""

import json
import logging
import sys
import time
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

logger = logging.getLogger("polynext.service")


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = getattr(record, "fields", {})
        line = {"time": round(time.time(), 3), "level": record.levelname.lower(), "event": record.getMessage()}
        if record.exc_info:
            fields = {**fields, "traceback": self.formatException(record.exc_info)}
        return json.dumps({**line, **fields}, default=str)


def log_to_stderr(level: str = "INFO") -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(level)


def log_event(event: str, level: int = logging.INFO, **fields: Any) -> None:
    """Log an event with fields. Ids of keys and jobs are shortened."""
    short = {name: value[:8] if name in ("job", "keys") else value for name, value in fields.items()}
    logger.log(level, event, extra={"fields": short})


class Metrics:
    """The metrics of one service."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "polynext_http_requests", "HTTP requests.", ["method", "route", "status"], registry=registry
        )
        self.received = Counter("polynext_received_bytes", "Received keys and ciphertexts.", registry=registry)
        self.jobs = Counter("polynext_jobs", "Finished jobs.", ["network", "state"], registry=registry)
        self.seconds = Histogram(
            "polynext_job_seconds",
            "Seconds that a worker spends on a job.",
            ["network"],
            registry=registry,
            buckets=(0.1, 0.3, 1, 3, 10, 30, 100, 300),
        )
        self.died = Counter("polynext_workers_died", "Jobs whose worker died.", registry=registry)
        self.queued = Gauge("polynext_jobs_queued", "Jobs in the queue.", registry=registry)
        self.running = Gauge("polynext_jobs_running", "Running jobs.", registry=registry)
        self.keys = Gauge("polynext_key_sets", "Key sets on disk.", registry=registry)
        self.key_bytes = Gauge("polynext_key_bytes", "Bytes of keys on disk.", registry=registry)
