"""A client of a service (`polynext encrypted serve`): makes and sends keys, encrypts, submits jobs and decrypts.

    client = polynext.encrypted.connect("http://127.0.0.1:8000")
    answer = client.predict(images)

Everything can be sent again after an interruption. An upload resumes where it stopped, and the client chooses the id of
a job, so that the server runs it once.
"""

import asyncio
import re
import secrets
import sys
import tempfile
import time
import warnings
from collections.abc import AsyncIterator, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import numpy as np
import platformdirs
from PIL import Image

from polynext.arrays import Array
from polynext.encrypted.client import Client
from polynext.encrypted.client_spec import ClientSpec
from polynext.encrypted.files import unpacked
from polynext.encrypted.key_folder import EVALUATION, SECRET, manifest, remove_oldest, require_room
from polynext.encrypted.messages import ManifestPart, NetworkSummary
from polynext.encrypted.runtime.backends.protocol import Ciphertext, Part
from polynext.encrypted.session import Progress, RefusedError, Session, printable
from polynext.encrypted.spec_limits import LARGEST_VALUE
from polynext.errors import PolyNeXtError, preview
from polynext.preprocessing import Preprocessing, open_picture

OPEN_JOBS = 8  # of one client at a time
MOST_KEY_SETS = 4  # of one service: a server that changes its parameters must not fill the client's disk

Images = Array | Sequence[Image.Image | Path | str]
Result = TypeVar("Result")


@dataclass(frozen=True)
class Prediction:
    """The logits (n, classes), which only this client can read, and the class of the largest logit of each image."""

    logits: Array
    labels: tuple[str, ...]


def show_progress(step: str, share: float) -> None:
    """Print the progress of a step, if stderr is a terminal."""
    if sys.stderr.isatty():
        end = "\n" if share >= 1 else ""
        print(f"\r\033[K{step}: {share:4.0%}", end=end, file=sys.stderr, flush=True)


def connect(
    url: str,
    network: str | None = None,
    keys: Path | None = None,
    token: str | None = None,
    *,
    offer: str | None = None,
    **options: Any,
) -> "RemoteClient":
    """A client of the service at an address.

    Args:
        url: address of the service, such as http://127.0.0.1:8000.
        network: name of the network; not needed if the service has only one.
        keys: folder for the keys, with access for its owner only. The default is a folder in the user's data folder,
            one for each service and client spec. Of a service, the last four are kept.
        token: bearer token, if the service needs one.
        offer: deprecated name of `network`.
        options: other fields of `RemoteClient`: `timeout`, `progress`, `allow_unencrypted`, `most_key_bytes`.
    """
    if offer is not None:
        warnings.warn("connect(offer=...) is now connect(network=...)", DeprecationWarning, stacklevel=2)
        network = offer
    return RemoteClient(url, network, keys, token, **options)


@dataclass(eq=False)
class RemoteClient:
    """A client of a service; `connect` documents the first four fields. Methods have asynchronous versions (`_async`).

    Attributes:
        timeout: seconds after which a call gives up, whatever the service does.
        progress: function that is called with a step and the share that is done; prints to the terminal by default.
        allow_unencrypted: accept a backend that does not encrypt, for tests.
        most_key_bytes: most bytes of evaluation keys that a service may ask for.
    """

    url: str
    network: str | None = None
    keys: Path | None = None
    token: str | None = field(default=None, repr=False)
    timeout: float = 600.0
    progress: Progress = show_progress
    allow_unencrypted: bool = False
    most_key_bytes: int = 4 * 2**30
    client: Client | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if not re.match(r"https?://[^/]", self.url):
            raise PolyNeXtError(f"{self.url!r} is not the address of a service: give one like http://127.0.0.1:8000.")
        self.url = self.url.rstrip("/")

    def predict(self, images: Images) -> Prediction:
        """Classify image files, PIL images, or an array (n, *image shape) of normalised images."""
        return run(self.predict_async(images))

    def networks(self) -> list[dict[str, Any]]:
        """Summaries of the service's networks."""
        return run(self.networks_async())

    def client_spec(self) -> ClientSpec:
        """The client spec of the network."""
        return run(self.client_spec_async())

    def forget_keys(self) -> None:
        """Delete this client's evaluation keys on the server."""
        run(self.forget_keys_async())

    def offers(self) -> list[dict[str, Any]]:
        """Deprecated name of `networks`."""
        warnings.warn("RemoteClient.offers() is now networks()", DeprecationWarning, stacklevel=2)
        return self.networks()

    async def networks_async(self) -> list[dict[str, Any]]:
        async with self.session() as session:
            return [network.model_dump() for network in await self.list_networks(session)]

    async def client_spec_async(self) -> ClientSpec:
        async with self.session() as session:
            return await self.fetch_spec(session, await self.choose_network(session))

    async def forget_keys_async(self) -> None:
        async with self.session() as session:
            client, _ = await self.prepare_client(session)
            keys = await session.announce(client.spec.fingerprint, await self.manifest(client))
            await session.request("DELETE", f"v1/keys/{keys.id}")

    async def predict_async(self, images: Images) -> Prediction:
        async with self.session() as session:
            client, network = await self.prepare_client(session)
            prepared = prepare_images(images, client.spec.preprocessing)
            keys = await self.send_keys(session, client)
            self.progress("encrypting", 0)
            ciphertexts = await asyncio.to_thread(client.encrypt, prepared)
            self.progress("encrypting", 1)
            shares = [0.0] * len(ciphertexts)
            open_jobs = asyncio.Semaphore(OPEN_JOBS)

            async def answer(number: int, ciphertext: Ciphertext) -> Ciphertext:
                def progress(step: str, share: float) -> None:
                    shares[number] = share
                    self.progress(step, min(sum(shares) / len(shares), 0.99))

                async with open_jobs:
                    return await self.submit(session, client, {"network": network, "keys": keys}, ciphertext, progress)

            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(answer(i, ciphertext)) for i, ciphertext in enumerate(ciphertexts)]
        # After the last request, so that no request depends on what decryption yields.
        self.progress("answered", 1)
        logits = client.decrypt([task.result() for task in tasks], len(prepared))
        return Prediction(logits, tuple(client.spec.classes[i] for i in logits.argmax(axis=1)))

    # Keys

    async def prepare_client(self, session: Session) -> tuple[Client, str]:
        """The network's name, and a client with keys for it, which are made if there are none."""
        network = await self.choose_network(session)
        spec = await self.fetch_spec(session, network)
        if self.client is None or self.client.spec.fingerprint != spec.fingerprint:
            self.client = await asyncio.to_thread(self.load_client, spec)
        self.client.spec = spec
        return self.client, network

    async def fetch_spec(self, session: Session, network: str) -> ClientSpec:
        table = await session.json("GET", f"v1/networks/{network}")
        try:
            return ClientSpec.from_json(table)
        except ValueError as error:
            raise PolyNeXtError(
                f"{self.url} has a client spec of another version ({printable(str(error))}): use the same version of "
                "polynext on both sides."
            ) from error

    async def list_networks(self, session: Session) -> list[NetworkSummary]:
        return await session.read(list[NetworkSummary], "GET", "v1/networks")

    async def choose_network(self, session: Session) -> str:
        names = [network.name for network in await self.list_networks(session)]
        chosen = names[0] if self.network is None and len(names) == 1 else self.network
        if chosen is None or chosen not in names:
            problem = f"{self.url} has several networks" if chosen is None else f"{self.url} has no network {chosen!r}"
            raise PolyNeXtError(f"{problem}: choose a `network`, one of {preview(names)}.")
        return chosen

    def load_client(self, spec: ClientSpec) -> Client:
        """Load the keys for a client spec, or make them."""
        folder, size = self.key_folder(spec), spec.parameters.key_bytes * (len(spec.rotations) + 1)
        if new := not (folder / SECRET).exists():
            if size > self.most_key_bytes:
                raise PolyNeXtError(
                    f"{self.url} asks for {size / 2**20:.0f} MB of keys, and `most_key_bytes` is "
                    f"{self.most_key_bytes / 2**20:.0f} MB: raise it if you trust the service."
                )
            require_room(folder, size)
            self.progress("making keys", 0)
        client = Client.load_or_keygen(spec, folder, self.allow_unencrypted)
        if client.spec.fingerprint != spec.fingerprint:
            raise PolyNeXtError(
                f"{folder} has keys for client spec {client.spec.fingerprint}, and this network has "
                f"{spec.fingerprint}: choose another folder for `keys`."
            )
        if new:
            self.progress("making keys", 1)
        if self.keys is None:
            remove_oldest(folder.parent, MOST_KEY_SETS)
        return client

    def key_folder(self, spec: ClientSpec) -> Path:
        """The folder of the keys. By default every service has its own: it cannot replace the keys of another one."""
        if self.keys is not None:
            return self.keys
        service = re.sub(r"[^A-Za-z0-9.-]", "_", self.url.partition("//")[2])[:100]
        return platformdirs.user_data_path("polynext") / "keys" / service / spec.fingerprint

    async def manifest(self, client: Client) -> list[ManifestPart]:
        names = [part.name for part in Part.keys(client.spec.rotations)]
        return await asyncio.to_thread(manifest, self.key_folder(client.spec), client.key, names)

    async def send_keys(self, session: Session, client: Client) -> str:
        """Send the parts that the server does not have, and return the id of the keys."""
        parts = await self.manifest(client)
        state = await session.announce(client.spec.fingerprint, parts)
        if state.state == "ready":
            return state.id
        received = {part.name: min(part.received, part.bytes) for part in state.parts}
        total, sent = sum(part.bytes for part in parts), 0
        with unpacked(self.key_folder(client.spec) / EVALUATION, [part.name for part in parts]) as files:
            for part in parts:
                if received.get(part.name, 0) < part.bytes:

                    def progress(at: int, before: int = sent) -> None:
                        self.progress("sending keys", min((before + at) / total, 0.99))

                    await session.send_part(state.id, part, files[part.name], progress)
                sent += part.bytes
        self.progress("sending keys", 1)
        return state.id

    # Jobs

    async def submit(
        self, session: Session, client: Client, query: dict[str, str], ciphertext: Ciphertext, progress: Progress
    ) -> Ciphertext:
        """Submit a ciphertext as a job, wait for it, and return the encrypted answer."""
        job, ring, parameters = f"v1/jobs/{secrets.token_hex(16)}", client.secret.ring, client.spec.parameters
        with tempfile.TemporaryDirectory(dir=self.key_folder(client.spec)) as folder:
            file = Path(folder) / "ciphertext"
            ciphertext.save(str(file))
            body = file.read_bytes()
            try:
                await session.request("PUT", job, params=query, content=body)
            except RefusedError as refusal:
                if refusal.code not in ("unknown_keys", "keys_incomplete"):
                    raise
                await self.send_keys(session, client)  # the server deleted them
                await session.request("PUT", job, params=query, content=body)
            await session.wait_for(job, progress)
            answer = await session.request("GET", f"{job}/answer", most=ring.most_bytes(Part("ciphertext")))
            await session.request("DELETE", job, missing_ok=True)
            file.write_bytes(answer)
            return ring.load_ciphertext(file, parameters.depth, parameters.result_scale)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """Requests until the timeout, which bounds the whole call."""
        headers = {"Accept-Encoding": "identity", **({"Authorization": f"Bearer {self.token}"} if self.token else {})}
        limits = httpx.Timeout(60.0, connect=10.0)
        try:
            async with (
                asyncio.timeout(self.timeout),
                httpx.AsyncClient(base_url=f"{self.url}/", headers=headers, timeout=limits) as http,
            ):
                yield Session(http, self.url, time.monotonic() + self.timeout)
        except* PolyNeXtError as group:
            raise first_error(group) from None
        except* TimeoutError:
            raise PolyNeXtError(
                f"{self.url} did not answer within {self.timeout:g} s: try again with a longer `timeout`."
            ) from None


def prepare_images(images: Images, preprocessing: Preprocessing) -> Array:
    if isinstance(images, np.ndarray):
        prepared = np.asarray(images, dtype=np.float64)
    else:
        opened = [image if isinstance(image, Image.Image) else open_picture(Path(image)) for image in images]
        prepared = np.array([preprocessing(image).astype(np.float64) for image in opened])
    if len(prepared) == 0:
        raise PolyNeXtError("there are no images: give at least one.")
    # The limit does not depend on the server, so that a refusal tells it nothing.
    if not (np.abs(prepared) <= LARGEST_VALUE).all():
        raise PolyNeXtError(f"the images have values that are not numbers up to {LARGEST_VALUE:g}: normalise them.")
    return prepared


def first_error(group: BaseExceptionGroup[PolyNeXtError]) -> PolyNeXtError:
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, PolyNeXtError)
    return found


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine from synchronous code, also while an event loop runs, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()
