"""Start a service."""

import asyncio
import signal
import socket
from collections.abc import Mapping
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from polynext.encrypted.runtime.cost import mebibytes
from polynext.errors import PolyNeXtError
from polynext.service.app import create_app
from polynext.service.connections import limited_connections
from polynext.service.log import log_to_stderr
from polynext.service.networks import ServedNetwork
from polynext.service.service import Service
from polynext.service.settings import Settings, Tokens
from polynext.service.store import Store
from polynext.service.workers import LocalWorkers, Workers
from polynext.tables import table


def make_workers(networks: Mapping[str, ServedNetwork], settings: Settings, cluster: str | None) -> Workers:
    """Workers on this machine, or on a Ray cluster."""
    folders = {name: network.folder for name, network in networks.items()}
    if cluster is None:
        return LocalWorkers(folders, settings)
    from polynext.service.cluster import RayWorkers

    return RayWorkers(folders, settings, cluster)


def serve(
    networks: Mapping[str, ServedNetwork],
    data: Path,
    host: str = "127.0.0.1",
    port: int = 8000,
    settings: Settings | None = None,
    tokens: Tokens | None = None,
    cluster: str | None = None,
) -> None:
    """Serve until a signal stops it. It prints its address when the weights are encoded.

    Args:
        networks: networks by name, from `load_networks`.
        data: folder for keys, jobs and answers. It is created with access for its owner only.
        host: address to listen on.
        port: port to listen on; 0 chooses a free one.
        settings: limits of the service.
        tokens: accepted tokens; by default everybody may use the service.
        cluster: address of a Ray cluster, or "auto"; by default only this machine is used.
    """
    log_to_stderr()
    settings = settings or Settings()
    listening = listen(host, port)
    service = Service(networks, make_workers(networks, settings, cluster), Store(data, settings), settings)
    asyncio.run(run(service, create_app(service, tokens), listening))


def server_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=limited_connections(settings.connections),
        access_log=False,
        log_level="warning",
        lifespan="off",
        timeout_graceful_shutdown=5,
    )


async def run(service: Service, app: FastAPI, listening: socket.socket) -> None:
    server = uvicorn.Server(server_config(app, service.settings))
    await service.start()
    try:
        host, port = listening.getsockname()[:2]
        print(f"http://{f'[{host}]' if ':' in host else host}:{port}")
        print(f"\n{offered(service.networks)}\n\nCtrl+C stops the service.", flush=True)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)  # uvicorn handles them, then raises them again
        await server.serve([listening])
    finally:
        await service.stop()


def offered(networks: Mapping[str, ServedNetwork]) -> str:
    """A table of the networks, with what each request and each client costs."""
    rows = [
        (
            name,
            f"{network.spec.cost.seconds:.2f} s",
            str(network.spec.images),
            mebibytes(network.spec.cost.key_bytes),
            mebibytes(network.spec.cost.peak_bytes),
        )
        for name, network in networks.items()
    ]
    return table(("network", "predicted on one core", "images per ciphertext", "keys of a client", "memory"), rows)


def listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(128)  # clients may connect before the server accepts
    except (OSError, OverflowError) as error:
        listening.close()
        raise PolyNeXtError(
            f"cannot listen on {host}, port {port} ({getattr(error, 'strerror', None) or error}): "
            "choose another `port`, or stop the program that uses it."
        ) from error
    return listening
