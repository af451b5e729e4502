"""A service that does not keep to the rules: it publishes whatever a test wants, and records all requests."""

import json
import random
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from polynext.service.app import PAGE

TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".wasm": "application/wasm"}
IDS = re.compile(r"[0-9a-f]{32}")


@dataclass
class HostileService:
    """Answers every job at once with the client's own ciphertext. `overrides` are bodies of responses by path, and
    `failures` how often a request, such as "GET /v1/jobs/ID/answer", gets status 503 before it succeeds."""

    description: dict[str, Any]
    summary: dict[str, Any]
    page: Path = PAGE
    overrides: dict[str, Any] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    traffic: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)  # of the requests, in seconds since the epoch
    closed: list[float] = field(default_factory=list)  # when connections ended
    parts: list[dict[str, Any]] = field(default_factory=list)
    ciphertexts: dict[str, bytes] = field(default_factory=dict)
    url: str = ""

    def answer(self, method: str, path: str, body: bytes) -> tuple[str, bytes]:
        """The content type and body of a response."""
        where, query = urlsplit(path).path, parse_qs(urlsplit(path).query)
        for pattern, given in self.overrides.items():
            if re.fullmatch(pattern, where):
                return "application/json", given if isinstance(given, bytes) else json.dumps(given).encode()
        if where.endswith("/events"):
            return "text/event-stream", b"event: job\ndata: " + json.dumps(self.job(where)).encode() + b"\n\n"
        if where.endswith("/answer"):
            return "application/octet-stream", self.ciphertexts.get(where.split("/")[3], b"")
        if where.startswith("/v1/jobs/"):
            if method == "PUT":
                self.ciphertexts[where.split("/")[3]] = body
            return "application/json", json.dumps(self.job(where)).encode()
        if where == "/v1/keys" and method == "POST":
            announced = json.loads(body)["parts"]
            if [part["sha256"] for part in announced] != [part["sha256"] for part in self.parts]:
                self.parts = announced
        if where.startswith("/v1/keys") and "/parts/" in where:
            name, start = where.split("/")[-1], int(query["offset"][0])
            part = next((part for part in self.parts if part["name"] == name), {"name": name, "bytes": 1})
            part["received"] = start + len(body)
            return "application/json", json.dumps(self.part(part)).encode()
        if where.startswith("/v1/keys"):
            return "application/json", json.dumps(self.keys()).encode()
        published = {
            "/v1/service": {"name": "polynext", "version": "0", "token_required": False, "limits": {}},
            "/v1/networks": [self.summary],
            f"/v1/networks/{self.summary['name']}": self.description,
        }
        if where in published:
            return "application/json", json.dumps(published[where]).encode()
        file = self.page / (where.lstrip("/") or "index.html")
        return TYPES.get(file.suffix, "application/octet-stream"), file.read_bytes() if file.is_file() else b""

    def part(self, part: dict[str, Any]) -> dict[str, Any]:
        received = part.get("received", 0)
        return {**part, "received": received, "complete": received == part["bytes"]}

    def keys(self) -> dict[str, Any]:
        parts = [self.part(part) for part in self.parts]
        state = "ready" if all(part["complete"] for part in parts) else "incomplete"
        return {"id": "0" * 32, "client_spec": "", "state": state, "expires": 1, "parts": parts}

    def job(self, where: str) -> dict[str, Any]:
        times: dict[str, Any] = dict.fromkeys(("created", "started", "finished", "expires", "attempts"), 1)
        empty = dict.fromkeys(("position", "error", "answer_bytes", "retry_after"))
        names = {"id": where.split("/")[3], "network": self.summary["name"], "keys": "0" * 32}
        return {**names, **times, **empty, "state": "done", "progress": 1.0}


@contextmanager
def hostile(service: HostileService) -> Iterator[HostileService]:
    """Serve on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            if self.headers.get("transfer-encoding") == "chunked":
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
            request = f"{self.command} {IDS.sub('ID', self.path)}"
            service.times.append(time.time())
            service.traffic.append(request)
            kind, answer = service.answer(self.command, self.path, body)
            service.failures[request] = left = service.failures.get(request, 0) - 1
            self.send_response(503 if left >= 0 else 200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_PUT = do_POST = do_DELETE = respond  # noqa: N815  (names of the standard library)

        def finish(self) -> None:
            service.closed.append(time.time())
            super().finish()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    service.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


LARGE_LIST = [0] * 100_000
DEEP: Any = []
for _ in range(500):
    DEEP = [DEEP]
VALUES: list[Any] = [
    None, True, False, -1, 0, 1, 2, 3, 7, 1000, 2**15, 2**16, 2**31, 2**63, 2**64, 10**30, -(2**63), 0.5, -0.5, 1e-300,
    1e300, float("inf"), float("nan"), "", "x", "\x1b[2J", "../../secret", "x" * 100_000, [], {}, [[]], [0], [-1],
    [2**63], LARGE_LIST, DEEP, {"a": 1}, "clear", "seal", "centre",
]  # fmt: skip


def mutated(description: Any, number: int) -> Any:
    """A description with one to three fields or entries replaced, removed, repeated or exchanged."""
    chance = random.Random(number)
    made = deepcopy(description)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        places = list(containers(made))
        place = chance.choice(places)
        if not len(place):
            continue
        key = chance.choice(list(place)) if isinstance(place, dict) else chance.randrange(len(place))
        action = chance.randrange(6)
        if action == 0:
            del place[key]
        elif action == 1 and isinstance(place, list):
            place.extend(place[key : key + 1] * chance.choice((1, 10 if isinstance(place[key], list) else 40_000)))
        elif action == 2:
            other = chance.choice(places)
            place[key] = deepcopy(chance.choice(list(other.values() if isinstance(other, dict) else other) or [0]))
        elif action == 3 and isinstance(place[key], (int, float)) and not isinstance(place[key], bool):
            place[key] = place[key] * chance.choice((-1, 2, 1000, 2**40)) + chance.choice((-1, 0, 1))
        else:
            place[key] = chance.choice(VALUES)
    return made


def containers(value: Any) -> Iterator[Any]:
    """All tables and lists inside a value. Long lists count once, so that mutations reach every field."""
    if isinstance(value, dict):
        yield value
        for each in value.values():
            yield from containers(each)
    elif isinstance(value, list):
        yield value
        for each in value[:20]:
            yield from containers(each)
