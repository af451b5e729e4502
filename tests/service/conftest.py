"""Services on 127.0.0.1 with a small network, and server folders."""

import asyncio
import hashlib
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import uvicorn

from polynext.circuit import lower
from polynext.encrypted import Plan, connect, make_plan, save_server
from polynext.encrypted.compiler.prepare import client_spec_for
from polynext.encrypted.remote import RemoteClient
from polynext.encrypted.runtime.backends.protocol import Savable
from polynext.preprocessing import Preprocessing
from polynext.service import LocalWorkers, Service, Settings, Store, Tokens, create_app, load_networks
from polynext.service.run import server_config
from tests.circuit.test_circuit import small_network
from tests.encrypted.conftest import SAME_EVERYWHERE

# Seconds to wait: the machine may be busy with other tests.
PATIENCE = 300.0
QUIET: dict[str, Any] = {"progress": lambda what, share: None, "allow_unencrypted": True, "timeout": PATIENCE}


@pytest.fixture(scope="session")
def trained() -> Any:
    torch.manual_seed(1)
    return small_network()


@pytest.fixture(scope="session")
def examples() -> np.ndarray:
    return np.random.default_rng(3).normal(size=(32, 1, 4, 4))


@pytest.fixture(scope="session")
def plan(trained: Any, examples: np.ndarray) -> Plan:
    return make_plan(lower(trained), examples, 1, costs=SAME_EVERYWHERE)


def save(plan: Plan, backend: str, folder: Path, **changes: Any) -> Path:
    preprocessing = Preprocessing(size=4, resize=4, **changes)
    save_server(plan.program, client_spec_for(replace(plan, backend=backend), preprocessing, ("a", "b", "c")), folder)
    return folder


@pytest.fixture(scope="session")
def folder(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A server folder whose backend does not encrypt."""
    return save(plan, "clear", tmp_path_factory.mktemp("prepared") / "small")


@pytest.fixture(scope="session")
def seal_folder(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(plan, "seal", tmp_path_factory.mktemp("prepared") / "small")


class Running:
    """A service in its own thread."""

    def __init__(self, data: Path, *folders: Path, tokens: Tokens | None = None, **settings: Any):
        self.data, self.ready = data, threading.Event()
        self.clients: list[httpx.Client] = []
        self.settings = Settings(**{"free_disk": 0, **settings})
        self.networks, self.tokens = load_networks(folders, allow_unencrypted=True), tokens
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.thread = threading.Thread(target=lambda: asyncio.run(self.run()), daemon=True)
        self.thread.start()
        assert self.ready.wait(PATIENCE)

    async def run(self) -> None:
        workers = LocalWorkers({name: network.folder for name, network in self.networks.items()}, self.settings)
        self.service = Service(self.networks, workers, Store(self.data, self.settings), self.settings)
        config = server_config(create_app(self.service, self.tokens), self.settings)
        config.timeout_graceful_shutdown = 1
        self.server = uvicorn.Server(config)
        await self.service.start()
        self.loop = asyncio.get_running_loop()
        self.ready.set()
        try:
            await self.server.serve([self.socket])
        finally:
            await self.service.stop()

    def call(self, function: Callable[..., Any], *given: Any) -> Any:
        """Call a function in the service's thread."""

        async def called() -> Any:
            return function(*given)

        return asyncio.run_coroutine_threadsafe(called(), self.loop).result(PATIENCE)

    def stop(self) -> None:
        for client in self.clients:
            client.close()
        self.server.should_exit = True
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()

    def connect(self, keys: Path, **options: Any) -> RemoteClient:
        return connect(self.url, keys=keys, **{**QUIET, **options})

    def http(self, **options: Any) -> httpx.Client:
        self.clients.append(httpx.Client(base_url=self.url, timeout=PATIENCE, **options))
        return self.clients[-1]


Start = Callable[..., Running]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts services and stops them after the test."""
    started: list[Running] = []

    def start_one(*folders: Path, data: Path = tmp_path / "data", **options: Any) -> Running:
        started.append(Running(data, *folders, **options))
        return started[-1]

    yield start_one
    for running in started:
        if running.thread.is_alive():
            running.stop()


@pytest.fixture(scope="session")
def running(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One service for all tests that leave it intact."""
    made = Running(tmp_path_factory.mktemp("service"), folder)
    yield made
    made.stop()


class ByHand:
    """A client that sends HTTP requests itself, with its own keys."""

    def __init__(self, running: Running, network: str = "small", **options: Any):
        self.network = running.networks[network]
        self.http = running.http(**options)
        secret = self.network.ring.generate_key()
        keys = secret.sendable_keys(self.network.spec.rotations)
        savable = {"relinearisation": keys.relinearisation, **{f"rotation-{s}": k for s, k in keys.rotations.items()}}
        self.secret, self.parts = secret, {name: saved(savable[name]) for name in self.network.parts}
        if not self.network.encrypts:  # make the keys of this backend, which are all equal, differ
            self.parts["relinearisation"] += "".join(secrets.choice(" \n\t") for _ in range(32)).encode()

    def manifest(self, **changes: bytes) -> dict[str, Any]:
        parts = {**self.parts, **changes}
        described = [
            {"name": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in parts.items()
        ]
        return {"client_spec": self.network.spec.fingerprint, "parts": described}

    def announce(self, **changes: bytes) -> str:
        return self.http.post("/v1/keys", json=self.manifest(**changes)).raise_for_status().json()["id"]

    def put(self, keys: str, name: str, data: bytes, offset: int = 0) -> httpx.Response:
        return self.http.put(f"/v1/keys/{keys}/parts/{name}", params={"offset": offset}, content=data)

    def send_keys(self) -> str:
        keys = self.announce()
        for name, data in self.parts.items():
            self.put(keys, name, data).raise_for_status()
        return keys

    def ciphertext(self, image: np.ndarray) -> bytes:
        return saved(self.secret.encrypt(self.network.spec.pack(image[None])))

    def ask(self, job: str, keys: str, data: bytes, network: str = "small") -> httpx.Response:
        return self.http.put(f"/v1/jobs/{job}", params={"network": network, "keys": keys}, content=data)

    def logits(self, answer: bytes) -> np.ndarray:
        """Decrypt an answer."""
        parameters = self.network.spec.parameters
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "answer"
            file.write_bytes(answer)
            loaded = self.network.ring.load_ciphertext(file, parameters.depth, parameters.result_scale)
        return self.network.spec.result_layout.unpack(self.secret.decrypt(loaded))

    def ended(self, job: str, seconds: float = PATIENCE) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            state = self.http.get(f"/v1/jobs/{job}").raise_for_status().json()
            if state["state"] not in ("queued", "running"):
                return state
            time.sleep(0.05)
        raise AssertionError(f"job {job} did not end: {state}")


def saved(part: Savable) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        part.save(f"{folder}/part")
        return (Path(folder) / "part").read_bytes()


def wait_until(condition: Any) -> Any:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.01)
    raise AssertionError("the condition did not become true")


def new_job() -> str:
    return secrets.token_hex(16)
