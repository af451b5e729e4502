"""A client of a service (`polynext encrypted serve`): makes and sends keys, encrypts, submits jobs and decrypts.

    client = polynext.encrypted.connect("http://127.0.0.1:8000")
    answer = client.predict(images)

Everything can be sent again after an interruption. An upload resumes where it stopped, and the client chooses the id of
a job, so that the server runs it once.
"""

import asyncio
import hashlib
import json
import re
import secrets
import sys
import tempfile
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import numpy as np
import platformdirs
from PIL import Image

from polynext.arrays import Array
from polynext.encrypted.client import EVALUATION, SECRET, Client
from polynext.encrypted.client_spec import ClientSpec
from polynext.encrypted.files import unpacked
from polynext.encrypted.runtime.backends.protocol import Ciphertext, Part
from polynext.errors import PolyNeXtError
from polynext.preprocessing import open_picture

MANIFEST = "parts.json"
OPEN_JOBS = 8  # of one client at a time
CHUNK_BYTES = 2**20
# Requests are repeated if the response has a Retry-After header or one of these statuses, but not for these codes.
RETRIED_STATUSES, FINAL_CODES = (502, 503, 504), ("too_many_keys",)

Images = Array | Sequence[Image.Image | Path | str]
# Called with the name of a step and the share of it that is done.
Progress = Callable[[str, float], None]
Result = TypeVar("Result")


class RefusedError(PolyNeXtError):
    """The server refused a request. `code` names the reason for programs."""

    def __init__(self, status: int, code: str, message: str, retry_after: float | None = None):
        super().__init__(message)
        self.status, self.code, self.retry_after = status, code, retry_after


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
            one for each client spec.
        token: bearer token, if the service needs one.
        offer: deprecated name of `network`.
        options: other fields of `RemoteClient`: `timeout`, `progress`, `allow_unencrypted`.
    """
    if offer is not None:
        warnings.warn("connect(offer=...) is now connect(network=...)", DeprecationWarning, stacklevel=2)
        network = offer
    return RemoteClient(url, network, keys, token, **options)


@dataclass(eq=False)
class RemoteClient:
    """A client of a service; `connect` documents the first four fields. Methods have asynchronous versions (`_async`).

    Attributes:
        timeout: seconds after which a call gives up.
        progress: function that is called with a step and the share that is done; prints to the terminal by default.
        allow_unencrypted: accept a backend that does not encrypt, for tests.
    """

    url: str
    network: str | None = None
    keys: Path | None = None
    token: str | None = field(default=None, repr=False)
    timeout: float = 600.0
    progress: Progress = show_progress
    allow_unencrypted: bool = False
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

    def forget_keys(self) -> None:
        """Delete this client's evaluation keys on the server."""
        run(self.forget_keys_async())

    def offers(self) -> list[dict[str, Any]]:
        """Deprecated name of `networks`."""
        warnings.warn("RemoteClient.offers() is now networks()", DeprecationWarning, stacklevel=2)
        return self.networks()

    async def networks_async(self) -> list[dict[str, Any]]:
        async with self.session() as session:
            return await session.json("GET", "v1/networks")

    async def forget_keys_async(self) -> None:
        async with self.session() as session:
            client, _ = await self.prepare_client(session)
            id = (await session.announce(client.spec, await self.manifest(client)))["id"]
            await session.request("DELETE", f"v1/keys/{id}")

    async def predict_async(self, images: Images) -> Prediction:
        async with self.session() as session:
            client, network = await self.prepare_client(session)
            prepared = prepare_images(images, client.spec)
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
            self.progress("answered", 1)
            logits = client.decrypt([task.result() for task in tasks], len(prepared))
            return Prediction(logits, tuple(client.spec.classes[i] for i in logits.argmax(axis=1)))

    # Keys

    async def prepare_client(self, session: "Session") -> tuple[Client, str]:
        """The network's name, and a client with keys for it, which are made if there are none."""
        network = await self.choose_network(session)
        table = await session.json("GET", f"v1/networks/{network}")
        try:
            spec = ClientSpec.from_json(table)
        except ValueError as error:
            raise PolyNeXtError(
                f"{self.url} has a client spec of another version ({error}): use the same version of polynext on both "
                "sides."
            ) from error
        if self.client is None or self.client.spec.fingerprint != spec.fingerprint:
            self.client = await asyncio.to_thread(self.load_client, spec)
        self.client.spec = spec
        return self.client, network

    async def choose_network(self, session: "Session") -> str:
        names = [network["name"] for network in await session.json("GET", "v1/networks")]
        chosen = names[0] if self.network is None and len(names) == 1 else self.network
        if chosen is None or chosen not in names:
            problem = f"{self.url} has several networks" if chosen is None else f"{self.url} has no network {chosen!r}"
            raise PolyNeXtError(f"{problem}: choose a `network`, one of {', '.join(names)}.")
        return chosen

    def load_client(self, spec: ClientSpec) -> Client:
        """Load the keys for a client spec, or make them."""
        folder = self.key_folder(spec)
        if (folder / SECRET).exists():
            client = Client.load(folder, self.allow_unencrypted)
            if client.spec.fingerprint != spec.fingerprint:
                raise PolyNeXtError(
                    f"{folder} has keys for client spec {client.spec.fingerprint}, and this network has "
                    f"{spec.fingerprint}: choose another folder for `keys`."
                )
            return client
        self.progress("making keys", 0)
        client = Client.keygen(spec, folder, self.allow_unencrypted)
        self.progress("making keys", 1)
        return client

    def key_folder(self, spec: ClientSpec) -> Path:
        folder = self.keys or platformdirs.user_data_path("polynext") / "keys" / spec.fingerprint
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder

    async def manifest(self, client: Client) -> list[dict[str, Any]]:
        """Names, sizes and hashes of the parts of the evaluation keys."""
        file = self.key_folder(client.spec) / MANIFEST
        if not file.exists():
            with self.key_parts(client) as parts:
                described = [await asyncio.to_thread(describe, name, path) for name, path in parts.items()]
            file.write_text(json.dumps(described))
        return json.loads(file.read_text())

    def key_parts(self, client: Client) -> AbstractContextManager[dict[str, Path]]:
        names = [part.name for part in Part.keys(client.spec.rotations)]
        return unpacked(self.key_folder(client.spec) / EVALUATION, names)

    async def send_keys(self, session: "Session", client: Client) -> str:
        """Send the parts that the server does not have, and return the id of the keys."""
        manifest = await self.manifest(client)
        state = await session.announce(client.spec, manifest)
        if state["state"] == "ready":
            return state["id"]
        total = sum(part["bytes"] for part in state["parts"])
        sent = sum(part["received"] for part in state["parts"])
        with self.key_parts(client) as parts:
            for part in state["parts"]:
                if not part["complete"]:

                    def progress(received: int, before: int = sent) -> None:
                        self.progress("sending keys", min((before + received) / total, 0.99))

                    await session.send_part(state["id"], part, parts[part["name"]], progress)
                    sent += part["bytes"] - part["received"]
        self.progress("sending keys", 1)
        return state["id"]

    # Jobs

    async def submit(
        self, session: "Session", client: Client, query: dict[str, str], ciphertext: Ciphertext, progress: Progress
    ) -> Ciphertext:
        """Submit a ciphertext as a job, wait for it, and return the encrypted answer."""
        job = f"v1/jobs/{secrets.token_hex(16)}"
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
            file.write_bytes((await session.request("GET", f"{job}/answer")).content)
            parameters = client.spec.parameters
            answer = client.secret.ring.load_ciphertext(file, parameters.depth, parameters.result_scale)
        await session.request("DELETE", job, missing_ok=True)
        return answer

    @asynccontextmanager
    async def session(self) -> "AsyncIterator[Session]":
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        timeout = httpx.Timeout(60.0, connect=10.0)
        async with httpx.AsyncClient(base_url=f"{self.url}/", headers=headers, timeout=timeout) as http:
            try:
                yield Session(http, self.url, time.monotonic() + self.timeout)
            except* PolyNeXtError as group:
                raise first_error(group) from None


@dataclass
class Session:
    """Requests to one server until a deadline. They are repeated while that may help."""

    http: httpx.AsyncClient
    url: str
    deadline: float

    async def request(
        self, method: str, path: str, missing_ok: bool = False, retry: bool = True, **options: Any
    ) -> httpx.Response:
        async def attempt() -> httpx.Response:
            return checked(await self.http.request(method, path, **options), missing_ok)

        return await (self.retry(attempt) if retry else attempt())

    async def json(self, method: str, path: str, **options: Any) -> Any:
        return (await self.request(method, path, **options)).json()

    async def retry(self, attempt: Callable[[], Awaitable[Result]]) -> Result:
        """Repeat an attempt, with growing pauses, until it succeeds, fails for good, or the deadline passes."""
        pause = 0.2
        while True:
            try:
                return await attempt()
            except RefusedError as refusal:
                temporary = refusal.retry_after is not None or refusal.status in RETRIED_STATUSES
                if refusal.code in FINAL_CODES or not temporary:
                    raise
                error: Exception = refusal
                wait = refusal.retry_after or pause
            except httpx.InvalidURL as invalid:
                raise PolyNeXtError(f"{self.url!r} is not the address of a service ({invalid}).") from invalid
            except httpx.TransportError as broken:
                error, wait = broken, pause
            if time.monotonic() + wait > self.deadline or (isinstance(error, httpx.ConnectError) and pause > 3):
                raise self.timeout_error(error) from error
            await asyncio.sleep(wait * (0.8 + 0.4 * secrets.randbelow(1000) / 1000))
            pause = min(2 * pause, 10.0)

    def timeout_error(self, error: Exception) -> PolyNeXtError:
        if isinstance(error, RefusedError):
            return PolyNeXtError(f"{self.url} still refuses after the timeout: {error}")
        reason = str(error) or type(error).__name__
        return PolyNeXtError(f"{self.url} cannot be reached ({reason}): check the address, and that the service runs.")

    async def announce(self, spec: ClientSpec, manifest: list[dict[str, Any]]) -> Any:
        return await self.json("POST", "v1/keys", json={"client_spec": spec.fingerprint, "parts": manifest})

    async def send_part(self, keys: str, part: dict[str, Any], path: Path, progress: Callable[[int], None]) -> None:
        """Send the bytes of a part that the server does not have."""

        async def attempt() -> None:
            state = await self.json("GET", f"v1/keys/{keys}", retry=False)
            received = next(p for p in state["parts"] if p["name"] == part["name"])["received"]
            if received < part["bytes"]:  # another process with the same keys may have sent it
                where = f"v1/keys/{keys}/parts/{part['name']}"
                chunks = read_chunks(path, received, lambda at: progress(at - part["received"]))
                checked(await self.http.put(where, params={"offset": received}, content=chunks))

        await self.retry(attempt)

    async def wait_for(self, job: str, progress: Progress) -> None:
        """Follow the job's server-sent events until it is done. Raises PolyNeXtError if it fails."""

        async def attempt() -> None:
            async with self.http.stream("GET", f"{job}/events") as response:
                if response.is_error:
                    await response.aread()
                checked(response)
                async for line in response.aiter_lines():  # also comments, which the server sends as a sign of life
                    if time.monotonic() > self.deadline:
                        raise PolyNeXtError(f"{self.url} did not answer in time: try again with a longer `timeout`.")
                    if line.startswith("data: ") and self.is_done(json.loads(line[6:]), progress):
                        return
            raise httpx.RemoteProtocolError("the connection closed early")

        await self.retry(attempt)

    def is_done(self, job: dict[str, Any], progress: Progress) -> bool:
        if job["state"] == "failed":
            raise PolyNeXtError(f"the job failed at {self.url}: {job['error']}")
        if job["state"] == "expired":
            raise PolyNeXtError(f"the answer at {self.url} has expired: try again.")
        queued = f"in the queue behind {job['position']}" if job["position"] else "in the queue"
        progress(queued if job["state"] == "queued" else "computing", job["progress"])
        return job["state"] == "done"


def checked(response: httpx.Response, missing_ok: bool = False) -> httpx.Response:
    """The response. Raises RefusedError if it is an error."""
    if response.is_success or (missing_ok and response.status_code == 404):
        return response
    try:
        table = response.json()
        code, message = str(table["code"]), str(table["error"])
    except (ValueError, KeyError, TypeError):
        code, message = "http", f"the server answered with status {response.status_code}."
    retry = response.headers.get("retry-after", "")
    raise RefusedError(response.status_code, code, message, float(retry) if retry.isdigit() else None)


async def read_chunks(path: Path, start: int, progress: Callable[[int], None]) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        file.seek(start)
        while chunk := file.read(CHUNK_BYTES):
            yield chunk
            progress(file.tell())


def describe(name: str, path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"name": name, "bytes": path.stat().st_size, "sha256": digest}


def prepare_images(images: Images, spec: ClientSpec) -> Array:
    if isinstance(images, np.ndarray):
        prepared = np.asarray(images, dtype=np.float64)
    else:
        opened = [image if isinstance(image, Image.Image) else open_picture(Path(image)) for image in images]
        prepared = np.array([spec.preprocessing(image).astype(np.float64) for image in opened])
    if len(prepared) == 0:
        raise PolyNeXtError("there are no images: give at least one.")
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
