"""Nobody can keep others out: shares of connections, requests and bodies, and what is refused before it is read."""

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from polynext.encrypted import connect
from polynext.service import Settings, Tokens, connections, routes
from tests.encrypted.conftest import logits
from tests.service.conftest import PATIENCE, ByHand, Running, Start, new_job, wait_until


@contextmanager
def connection(running: Running, address: str = "127.0.0.1") -> Iterator[socket.socket]:
    """A connection from an address of this machine: each counts as another client."""
    host, port = running.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE, source_address=(address, 0)) as opened:
        yield opened


def head(method: str, path: str, length: int) -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode()


def status(opened: socket.socket) -> int:
    """The status of the response, or 0 if the server closed the connection."""
    with suppress(ConnectionError):
        return int((opened.recv(2**16).split() or [0, 0])[1])
    return 0


def add_running(running: Running, job: str, caller: str) -> None:
    """A job that runs for ever."""
    columns = "id, network, keys, caller, digest, dialect, turn, state, created"
    values = (job, "small", "0" * 32, caller, "", "", 1, "running", 1.0)
    marks = ", ".join("?" * len(values))
    running.call(running.service.store.write, f"INSERT INTO jobs ({columns}) VALUES ({marks})", *values)


def test_bodies_are_refused_before_they_are_read(start: Start, folder: Path, examples: np.ndarray) -> None:
    """The requests announce a body that never comes. Without keys or a place in the queue it is not waited for."""
    running = start(folder, jobs=1, workers=1)
    by_hand = ByHand(running)
    keys, incomplete = by_hand.send_keys(), ByHand(running).announce()
    size = len(by_hand.ciphertext(examples[0]))
    for query, expected in (
        (f"network=small&keys={'0' * 32}", 404),
        (f"network=large&keys={keys}", 404),
        (f"network=small&keys={incomplete}", 409),
    ):
        with connection(running) as opened:
            opened.sendall(head("PUT", f"/v1/jobs/{new_job()}?{query}", size))
            assert status(opened) == expected
    add_running(running, new_job(), "@127.0.0.1")
    with connection(running) as opened:
        opened.sendall(head("PUT", f"/v1/jobs/{new_job()}?network=small&keys={keys}", size))
        assert status(opened) == 429
    assert not list((running.data / "jobs").iterdir())


def test_slow_bodies_end(start: Start, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "BODY_SECONDS", 0.5)
    running = start(folder)
    by_hand = ByHand(running)
    keys = by_hand.announce()
    with connection(running) as opened:
        opened.sendall(head("PUT", f"/v1/keys/{keys}/parts/relinearisation?offset=0", 100) + b"x")
        assert status(opened) == 408
    wait_until(lambda: not running.service.uploading)
    with connection(running) as opened:
        opened.sendall(head("POST", "/v1/keys", 100))
        assert status(opened) == 408


def test_connections_of_one_address_are_limited(start: Start, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "IDLE_SECONDS", 1.0)
    running = start(folder, connections=5)
    with ExitStack() as stack:
        many = [stack.enter_context(connection(running, "127.0.0.2")) for _ in range(8)]
        assert [status(opened) for opened in many[5:]] == [0] * 3, "more than five are closed at once"
        other = stack.enter_context(connection(running, "127.0.0.3"))
        other.sendall(head("GET", "/health", 0))
        assert status(other) == 200
        assert [status(opened) for opened in many[:5]] == [0] * 5, "without a request they are closed soon"
    with connection(running, "127.0.0.2") as opened:
        opened.sendall(head("GET", "/health", 0))
        assert status(opened) == 200


def test_clients_behind_a_proxy_have_their_own_limits(
    start: Start, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "127.0.0.2")
    running = start(folder, connections=2, requests=2, workers=1)
    job = new_job()
    add_running(running, job, "@10.0.0.1")
    with ExitStack() as stack:

        def answer_to(client: str, path: str) -> int:
            opened = stack.enter_context(connection(running, "127.0.0.2"))
            request = head("GET", path, 0)
            opened.sendall(request.replace(b"\r\n", f"\r\nX-Forwarded-For: {client}\r\n".encode(), 1))
            return status(opened)

        assert [answer_to("10.0.0.1", f"/v1/jobs/{job}/events") for _ in range(3)] == [200, 200, 429]
        assert answer_to("10.0.0.2", "/v1/networks") == 200


def test_requests_and_event_streams_of_one_address_are_limited(start: Start, folder: Path) -> None:
    running = start(folder, requests=4, workers=1)
    by_hand = ByHand(running)
    job = new_job()
    add_running(running, job, "@127.0.0.2")
    with ExitStack() as stack:
        streams = [stack.enter_context(connection(running, "127.0.0.2")) for _ in range(6)]
        answers = []
        for opened in streams:
            opened.sendall(head("GET", f"/v1/jobs/{job}/events", 0))
            answers.append(status(opened))
        assert answers == [200] * 4 + [429] * 2
        assert by_hand.http.get("/health").status_code == 200
    wait_until(lambda: httpx.get(f"{running.url}/health").status_code == 200)


def test_metrics_are_bounded_and_need_a_token(start: Start, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "tokens.toml").write_text(f'[ann]\ntoken = "{"a" * 20}"\n')
    running = start(folder, tokens=Tokens.load(tmp_path / "tokens.toml", Settings()))
    http = running.http()
    assert http.get("/metrics").status_code == 401
    allowed = {"Authorization": f"Bearer {'a' * 20}"}
    before = len(http.get("/metrics", headers=allowed).text)
    for number in range(200):
        http.request(f"METHOD{number}", f"/path{number}")
    after = http.get("/metrics", headers=allowed).text
    assert len(after) < before + 500 and 'method="other"' in after
    (tmp_path / "tokens.toml").write_text(f'["@ann"]\ntoken = "{"a" * 20}"\n')
    with pytest.raises(ValueError, match="begins with @"):
        Tokens.load(tmp_path / "tokens.toml", Settings())


def test_jobs_are_not_shown_to_another_token(start: Start, folder: Path, examples: np.ndarray, tmp_path: Path) -> None:
    """Not even to one who knows the id and the ciphertext."""
    tokens = "".join(f'[{name}]\ntoken = "{name[0] * 20}"\n' for name in ("ann", "bob"))
    (tmp_path / "tokens.toml").write_text(tokens)
    running = start(folder, tokens=Tokens.load(tmp_path / "tokens.toml", Settings()))
    ann, bob = (ByHand(running, headers={"Authorization": f"Bearer {letter * 20}"}) for letter in "ab")
    keys, job, data = ann.send_keys(), new_job(), ann.ciphertext(examples[0])
    assert ann.ask(job, keys, data).status_code == 202
    assert ann.ask(job, keys, data).status_code == 200
    assert bob.ask(job, keys, data).status_code == 409


def test_a_lost_answer_is_reported(start: Start, folder: Path, examples: np.ndarray) -> None:
    running = start(folder)
    by_hand = ByHand(running)
    job = new_job()
    by_hand.ask(job, by_hand.send_keys(), by_hand.ciphertext(examples[0])).raise_for_status()
    assert by_hand.ended(job)["state"] == "done"
    (running.data / "jobs" / job / "answer").write_bytes(b"")
    lost = by_hand.http.get(f"/v1/jobs/{job}/answer")
    assert lost.status_code == 410 and "lost the answer" in lost.json()["error"]
    assert by_hand.http.get(f"/v1/jobs/{job}").json()["state"] == "failed"


def test_the_timeout_bounds_a_slow_server() -> None:
    """A server that sends a byte at a time, for ever."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def trickle() -> None:
            with suppress(OSError):
                opened, _ = server.accept()
                with opened:
                    opened.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
                    while True:
                        opened.sendall(b"[")
                        time.sleep(0.1)

        thread = threading.Thread(target=trickle, daemon=True)
        thread.start()
        with pytest.raises(ValueError, match="did not answer within 1 s"):
            connect(f"http://127.0.0.1:{server.getsockname()[1]}", timeout=1.0).networks()
        thread.join(PATIENCE)


class Attacker:
    """A client at its own address that takes what it can get: keys, queue, connections, streams and bodies."""

    def __init__(self, running: Running, number: int):
        self.running, self.address = running, f"127.0.0.{10 + number}"
        self.stopping = threading.Event()
        self.open: list[socket.socket] = []

    def attack(self) -> None:
        transport = httpx.HTTPTransport(local_address=self.address)
        by_hand = ByHand(self.running, transport=transport)
        with suppress(httpx.HTTPError):
            keys = by_hand.send_keys()
            data = by_hand.ciphertext(np.zeros((1, 4, 4)))
            while not self.stopping.wait(0.02):
                with suppress(httpx.HTTPError, OSError):
                    self.round(by_hand, keys, data)
        for opened in self.open:
            opened.close()

    def round(self, by_hand: ByHand, keys: str, data: bytes) -> None:
        by_hand.http.request(f"M{new_job()}", f"/{new_job()}")
        by_hand.parts["relinearisation"] += b" "
        by_hand.http.post("/v1/keys", json=by_hand.manifest())
        by_hand.ask(new_job(), keys, data)
        job = new_job()
        by_hand.ask(job, keys, data)
        host, port = self.running.url.removeprefix("http://").split(":")
        for request in (
            b"GET /v1/jobs",
            head("GET", f"/v1/jobs/{job}/events", 0),
            head("PUT", f"/v1/jobs/{new_job()}?network=small&keys={keys}", len(data)) + data[:1],
        ):
            opened = socket.create_connection((host, int(port)), 5, source_address=(self.address, 0))
            self.open.append(opened)
            opened.sendall(request)


@pytest.mark.slow
def test_honest_clients_finish_among_hostile_ones(
    start: Start, folder: Path, trained: Any, examples: np.ndarray
) -> None:
    running = start(folder, workers=2, queue=30, jobs=20, keys=8, key_disk=200 * 2**20, requests=32, connections=64)
    wanted = logits(trained, examples[:20])
    attackers = [Attacker(running, number) for number in range(5)]

    def ask(number: int) -> np.ndarray:
        """An honest client at its own address, with its own requests."""
        by_hand = ByHand(running, transport=httpx.HTTPTransport(local_address=f"127.0.1.{number}", retries=3))
        keys, data, answers = by_hand.send_keys(), by_hand.ciphertext(examples[number]), []
        for _ in range(3):
            job = new_job()
            wait_until(lambda job=job: by_hand.ask(job, keys, data).status_code in (200, 202) or time.sleep(0.2))
            assert by_hand.ended(job)["state"] == "done"
            answers.append(by_hand.logits(by_hand.http.get(f"/v1/jobs/{job}/answer").raise_for_status().content))
        return np.concatenate(answers)

    with ThreadPoolExecutor(25) as threads:
        attacks = [threads.submit(attacker.attack) for attacker in attackers]
        try:
            answers = list(threads.map(ask, range(20)))
        finally:
            for attacker in attackers:
                attacker.stopping.set()
        for attack in attacks:
            attack.result(PATIENCE)
    for number, answer in enumerate(answers):
        np.testing.assert_allclose(answer, wanted[[number] * 3], atol=1e-6)
    assert sum(running.service.store.stored.values()) <= running.settings.key_disk
    assert len(running.http().get("/metrics").text) < 2**16
