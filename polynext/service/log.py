"""What a service tells its operator: a line of JSON for each event, and counters for Prometheus.

Neither has ever more of a key, a ciphertext or a token than the first letters of its name.
"""

import json
import logging
import sys
import time
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

logger = logging.getLogger("polynext.service")


class AsJson(logging.Formatter):
    """One line for each event."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = getattr(record, "told", {})
        line = {"time": round(time.time(), 3), "level": record.levelname.lower(), "event": record.getMessage(), **told}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_to_stderr(level: str = "INFO") -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(AsJson())
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(level)


def tell(event: str, level: int = logging.INFO, **told: Any) -> None:
    """Logs an event; names of keys and jobs are shortened."""
    short = {name: value[:8] if name in ("job", "keys") else value for name, value in told.items()}
    logger.log(level, event, extra={"told": short})


class Metrics:
    """Counters of one service."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "polynext_http_requests", "Answered HTTP requests.", ["method", "route", "status"], registry=registry
        )
        self.received = Counter("polynext_received_bytes", "Bytes of keys and ciphertexts.", registry=registry)
        self.jobs = Counter("polynext_jobs", "Jobs that ended.", ["offer", "state"], registry=registry)
        self.seconds = Histogram(
            "polynext_job_seconds",
            "Seconds of a job in a worker.",
            ["offer"],
            registry=registry,
            buckets=(0.1, 0.3, 1, 3, 10, 30, 100, 300),
        )
        self.died = Counter("polynext_workers_died", "Jobs whose worker died.", registry=registry)
        self.queued = Gauge("polynext_jobs_queued", "Jobs that wait.", registry=registry)
        self.running = Gauge("polynext_jobs_running", "Jobs that are worked on.", registry=registry)
        self.keys = Gauge("polynext_key_sets", "Evaluation keys on disk.", registry=registry)
        self.key_bytes = Gauge("polynext_key_bytes", "Their announced bytes.", registry=registry)
