"""Starts a service."""

import asyncio
import signal
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

import uvicorn

from polynext.errors import PolyNeXtError
from polynext.service.app import create_app
from polynext.service.log import log_to_stderr
from polynext.service.networks import Network
from polynext.service.service import Service
from polynext.service.settings import Settings, Tokens
from polynext.service.store import Store
from polynext.service.workers import LocalWorkers, Workers


def make_workers(networks: Mapping[str, Network], settings: Settings, cluster: str | None) -> Workers:
    """On this machine, or on those of a Ray cluster."""
    folders = {name: network.folder for name, network in networks.items()}
    if cluster is None:
        return LocalWorkers(folders, settings)
    from polynext.service.cluster import RayWorkers

    return RayWorkers(folders, settings, cluster)


def serve(
    networks: Mapping[str, Network],
    data: Path,
    host: str = "127.0.0.1",
    port: int = 8000,
    settings: Settings | None = None,
    tokens: Tokens | None = None,
    cluster: str | None = None,
    notes: Iterable[str] = (),
) -> None:
    """Serves until it is stopped. Its first line tells the address, after the weights were encoded.

    Args:
        networks: by name, from `load_networks`.
        data: folder for keys, jobs and answers; it is made, for its owner only.
        host: the address to listen at.
        port: 0 takes a free one.
        settings: the bounds.
        tokens: who may ask; everybody if not given.
        cluster: the address of a Ray cluster, or "auto"; this machine alone if not given.
        notes: lines to print below the address.
    """
    log_to_stderr()
    settings = settings or Settings()
    listening = listen(host, port)
    asyncio.run(run(networks, data, listening, settings, tokens, cluster, notes))


async def run(
    networks: Mapping[str, Network],
    data: Path,
    listening: socket.socket,
    settings: Settings,
    tokens: Tokens | None,
    cluster: str | None,
    notes: Iterable[str],
) -> None:
    store = Store(data, settings)
    service = Service(networks, make_workers(networks, settings, cluster), store, settings)
    config = uvicorn.Config(
        create_app(service, tokens), access_log=False, log_level="warning", lifespan="off", timeout_graceful_shutdown=5
    )
    server = uvicorn.Server(config)
    await service.start()
    try:
        host, port = listening.getsockname()[:2]
        print(f"http://{f'[{host}]' if ':' in host else host}:{port}", *notes, sep="\n", flush=True)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)  # uvicorn stops at them, and then raises them again
        await server.serve([listening])
    finally:
        await service.stop()


def listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(128)  # who reads the address may connect at once
    except (OSError, OverflowError) as error:
        listening.close()
        raise PolyNeXtError(
            f"cannot listen at {host}, port {port} ({getattr(error, 'strerror', None) or error}): "
            "choose another `port`, or stop what uses it."
        ) from error
    return listening
