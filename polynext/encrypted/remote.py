"""A client of a service (`polynext encrypted serve`): makes keys, sends what the server lacks, asks, decrypts.

    client = polynext.encrypted.connect("http://127.0.0.1:8000")
    answer = client.predict(images)

Everything that is sent can be sent again: keys go on where they were cut off, and a request has a name that the client
chose, under which the server answers it once.
"""

import asyncio
import hashlib
import json
import re
import secrets
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
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
AT_A_TIME = 8  # requests of one client that are open at once
PIECE = 2**20
# A server that says when to come back is asked again, and so is one that its proxy cannot reach.
RETRIED, FINAL = (502, 503, 504), ("too_many_keys",)

# Something is happening: what, and which share of it is done.
Progress = Callable[[str, float], None]
Result = TypeVar("Result")


class RefusedError(PolyNeXtError):
    """The server said no, with one sentence; `code` is the word for it."""

    def __init__(self, status: int, code: str, sentence: str, retry_after: float | None = None):
        super().__init__(sentence)
        self.status, self.code, self.retry_after = status, code, retry_after


@dataclass(frozen=True)
class Prediction:
    """The network's logits (n, classes), which nobody but this client has seen, and the name of the largest."""

    logits: Array
    labels: tuple[str, ...]


def show(what: str, share: float) -> None:
    """A line on a terminal that tells how far it is; nothing elsewhere."""
    if sys.stderr.isatty():
        end = "\n" if share >= 1 else ""
        print(f"\r\033[K{what}: {share:4.0%}", end=end, file=sys.stderr, flush=True)


def connect(
    url: str,
    network: str | None = None,
    keys: Path | None = None,
    token: str | None = None,
    timeout: float = 600.0,
    progress: Progress = show,
    allow_unencrypted: bool = False,
) -> "RemoteClient":
    """A client of the service at an address.

    Args:
        url: where the service is, such as http://127.0.0.1:8000.
        network: which of its networks to ask; not needed if it has one.
        keys: folder for the keys, which only its owner may enter; by default one in the user's data folder, for
            each offer its own.
        token: the bearer token, if the service wants one.
        timeout: seconds after which something that was asked for is given up.
        progress: is told what is going on; a line on the terminal by default.
        allow_unencrypted: for tests with pictures that need no protection.
    """
    return RemoteClient(url, network, keys, token, timeout, progress, allow_unencrypted)


class RemoteClient:
    """A client of a service, as `connect` makes it. What asks the server has a twin for asynchronous code."""

    def __init__(
        self,
        url: str,
        network: str | None,
        keys: Path | None,
        token: str | None,
        timeout: float,
        progress: Progress,
        allow_unencrypted: bool,
    ):
        if not re.match(r"https?://[^/]", url):
            raise PolyNeXtError(f"{url!r} is not the address of a service: give one like http://127.0.0.1:8000.")
        self.url, self.network, self.folder = url.rstrip("/"), network, keys
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.timeout, self.progress, self.allow_unencrypted = timeout, progress, allow_unencrypted
        self.client: Client | None = None

    def predict(self, images: "Array | Sequence[Image.Image | Path | str]") -> Prediction:
        """The network's answer for pictures, or for an array (n, *image shape) of normalised images."""
        return run(self.predict_async(images))

    def networks(self) -> list[dict[str, Any]]:
        """The networks that the service offers."""
        return run(self.networks_async())

    def forget_keys(self) -> None:
        """Has the server forget this client's keys."""
        run(self.forget_keys_async())

    async def networks_async(self) -> list[dict[str, Any]]:
        async with self.session() as session:
            return await session.json("GET", "v1/offers")

    async def forget_keys_async(self) -> None:
        async with self.session() as session:
            client, _ = await self.ready(session)
            id = (await session.announce(client.spec, await self.manifest(client)))["id"]
            await session.request("DELETE", f"v1/keys/{id}")

    async def predict_async(self, images: "Array | Sequence[Image.Image | Path | str]") -> Prediction:
        async with self.session() as session:
            client, name = await self.ready(session)
            prepared = prepared_images(images, client.spec)
            keys = await self.send_keys(session, client)
            self.progress("encrypting", 0)
            ciphertexts = await asyncio.to_thread(client.encrypt, prepared)
            self.progress("encrypting", 1)
            shares = [0.0] * len(ciphertexts)
            at_a_time = asyncio.Semaphore(AT_A_TIME)

            async def answered(number: int, ciphertext: Ciphertext) -> Ciphertext:
                def progress(what: str, share: float) -> None:
                    shares[number] = share
                    self.progress(what, min(sum(shares) / len(shares), 0.99))

                async with at_a_time:
                    return await self.ask(session, client, name, keys, ciphertext, progress)

            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(answered(i, ciphertext)) for i, ciphertext in enumerate(ciphertexts)]
            self.progress("answered", 1)
            logits = client.decrypt([task.result() for task in tasks], len(prepared))
            return Prediction(logits, tuple(client.spec.classes[i] for i in logits.argmax(axis=1)))

    # Keys

    async def ready(self, session: "Session") -> tuple[Client, str]:
        """A client with keys for the server's offer, made now if there are none, and the offer's name."""
        name = await self.chosen_network(session)
        table = await session.json("GET", f"v1/offers/{name}")
        try:
            spec = ClientSpec.from_json(table)
        except ValueError as error:
            raise PolyNeXtError(
                f"{self.url} has an offer that this version of polynext does not read ({error}): use the same version "
                "on both sides."
            ) from error
        if self.client is None or self.client.spec.fingerprint != spec.fingerprint:
            self.client = await asyncio.to_thread(self.own_client, spec)
        self.client.spec = spec
        return self.client, name

    async def chosen_network(self, session: "Session") -> str:
        names = [served["name"] for served in await session.json("GET", "v1/offers")]
        chosen = names[0] if self.network is None and len(names) == 1 else self.network
        if chosen is None or chosen not in names:
            asked = "no `network` was chosen" if chosen is None else f"there is no `network` {chosen!r}"
            raise PolyNeXtError(f"{asked} at {self.url}: choose one of {', '.join(names)}.")
        return chosen

    def own_client(self, spec: ClientSpec) -> Client:
        folder = self.key_folder(spec)
        if (folder / SECRET).exists():
            client = Client.load(folder, self.allow_unencrypted)
            if client.spec.fingerprint != spec.fingerprint:
                raise PolyNeXtError(
                    f"{folder} holds keys for parameters {client.spec.fingerprint}, and this offer has "
                    f"{spec.fingerprint}: choose another folder for `keys`."
                )
            return client
        self.progress("making keys", 0)
        client = Client.keygen(spec, folder, self.allow_unencrypted)
        self.progress("making keys", 1)
        return client

    def key_folder(self, spec: ClientSpec) -> Path:
        folder = self.folder or platformdirs.user_data_path("polynext") / "keys" / spec.fingerprint
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder

    async def manifest(self, client: Client) -> list[dict[str, Any]]:
        """Names, lengths and hashes of the parts of the evaluation keys."""
        file = self.key_folder(client.spec) / MANIFEST
        if not file.exists():
            with self.parts(client) as parts:
                made = [await asyncio.to_thread(describe, name, path) for name, path in parts.items()]
            file.write_text(json.dumps(made))
        return json.loads(file.read_text())

    def parts(self, client: Client) -> Any:
        names = [part.name for part in Part.keys(client.spec.rotations)]
        return unpacked(self.key_folder(client.spec) / EVALUATION, names)

    async def send_keys(self, session: "Session", client: Client) -> str:
        """Sends what the server lacks, and returns the keys' name there."""
        manifest = await self.manifest(client)
        state = await session.announce(client.spec, manifest)
        if state["state"] == "ready":
            return state["id"]
        total = sum(part["bytes"] for part in state["parts"])
        sent = sum(part["received"] for part in state["parts"])
        with self.parts(client) as parts:
            for part in state["parts"]:
                if not part["complete"]:

                    def progress(received: int, before: int = sent) -> None:
                        self.progress("sending keys", min((before + received) / total, 0.99))

                    await session.send_part(state["id"], part, parts[part["name"]], progress)
                    sent += part["bytes"] - part["received"]
        self.progress("sending keys", 1)
        return state["id"]

    # Requests

    async def ask(
        self, session: "Session", client: Client, name: str, keys: str, ciphertext: Ciphertext, progress: Progress
    ) -> Ciphertext:
        """The encrypted answer to a ciphertext."""
        job, where = secrets.token_hex(16), {"offer": name, "keys": keys}
        with tempfile.TemporaryDirectory(dir=self.key_folder(client.spec)) as folder:
            file = Path(folder) / "ciphertext"
            ciphertext.save(str(file))
            body = file.read_bytes()
            try:
                await session.json("PUT", f"v1/jobs/{job}", params=where, content=body)
            except RefusedError as refusal:
                if refusal.code not in ("unknown_keys", "keys_incomplete"):
                    raise
                await self.send_keys(session, client)  # the server forgot them
                await session.json("PUT", f"v1/jobs/{job}", params=where, content=body)
            await session.wait_for(job, progress)
            file.write_bytes((await session.request("GET", f"v1/jobs/{job}/answer")).content)
            parameters = client.spec.parameters
            answer = client.secret.ring.load_ciphertext(file, parameters.depth, parameters.result_scale)
        await session.request("DELETE", f"v1/jobs/{job}", missing_ok=True)
        return answer

    @asynccontextmanager
    async def session(self) -> "AsyncIterator[Session]":
        limits = httpx.Timeout(60.0, connect=10.0)
        async with httpx.AsyncClient(base_url=f"{self.url}/", headers=self.headers, timeout=limits) as http:
            try:
                yield Session(http, self.url, time.monotonic() + self.timeout)
            except* PolyNeXtError as several:
                raise first_of(several) from None


@dataclass
class Session:
    """Requests to one server until a deadline, each repeated as long as that makes sense."""

    http: httpx.AsyncClient
    url: str
    deadline: float

    async def request(
        self, method: str, path: str, missing_ok: bool = False, again: bool = True, **options: Any
    ) -> httpx.Response:
        async def once() -> httpx.Response:
            return checked(await self.http.request(method, path, **options), missing_ok)

        return await (self.repeated(once) if again else once())

    async def json(self, method: str, path: str, **options: Any) -> Any:
        return (await self.request(method, path, **options)).json()

    async def repeated(self, attempt: Callable[[], Awaitable[Result]]) -> Result:
        """Tries until it works, is refused for good, or the time is over."""
        pause = 0.2
        while True:
            try:
                return await attempt()
            except RefusedError as refusal:
                if refusal.code in FINAL or (refusal.retry_after is None and refusal.status not in RETRIED):
                    raise
                error: Exception = refusal
                wait = refusal.retry_after or pause
            except httpx.InvalidURL as mistake:
                raise PolyNeXtError(f"{self.url!r} is not the address of a service ({mistake}).") from mistake
            except httpx.TransportError as cut:
                error, wait = cut, pause
            if time.monotonic() + wait > self.deadline or (isinstance(error, httpx.ConnectError) and pause > 3):
                raise self.given_up(error) from error
            await asyncio.sleep(wait * (0.8 + 0.4 * secrets.randbelow(1000) / 1000))
            pause = min(2 * pause, 10.0)

    def given_up(self, error: Exception) -> PolyNeXtError:
        if isinstance(error, RefusedError):
            return PolyNeXtError(f"{self.url} was asked until the time was over, and said: {error}")
        why = str(error) or type(error).__name__
        return PolyNeXtError(f"{self.url} cannot be reached ({why}): check the address, and that the service runs.")

    async def announce(self, spec: ClientSpec, manifest: list[dict[str, Any]]) -> Any:
        return await self.json("POST", "v1/keys", json={"offer": spec.fingerprint, "parts": manifest})

    async def send_part(self, keys: str, part: dict[str, Any], path: Path, progress: Callable[[int], None]) -> None:
        """From where the server has it on; after a cut, from there again."""

        async def attempt() -> None:
            state = await self.json("GET", f"v1/keys/{keys}", again=False)
            received = next(p for p in state["parts"] if p["name"] == part["name"])["received"]
            if received < part["bytes"]:  # another process with the same keys may be sending it too
                where = f"v1/keys/{keys}/parts/{part['name']}"
                pieces = read_pieces(path, received, lambda at: progress(at - part["received"]))
                checked(await self.http.put(where, params={"offset": received}, content=pieces))

        await self.repeated(attempt)

    async def wait_for(self, job: str, progress: Progress) -> None:
        """Until the job is done; raises if it fails."""

        async def attempt() -> None:
            async with self.http.stream("GET", f"v1/jobs/{job}/events") as response:
                if response.is_error:
                    await response.aread()
                checked(response)
                async for line in response.aiter_lines():
                    if time.monotonic() > self.deadline:
                        raise PolyNeXtError(f"{self.url} has not answered in time: try again with a longer `timeout`.")
                    if line.startswith("data: ") and self.ended(json.loads(line[6:]), progress):
                        return
            raise httpx.RemoteProtocolError("the connection was cut")

        await self.repeated(attempt)

    def ended(self, job: dict[str, Any], progress: Progress) -> bool:
        if job["state"] == "failed":
            raise PolyNeXtError(f"{self.url} could not answer: {job['error']}")
        if job["state"] == "expired":
            raise PolyNeXtError(f"the answer at {self.url} has expired: ask again.")
        waiting = f"waiting behind {job['position']}" if job["position"] else "waiting"
        progress(waiting if job["state"] == "queued" else "computing", job["progress"])
        return job["state"] == "done"


def checked(response: httpx.Response, missing_ok: bool = False) -> httpx.Response:
    """The response, if it is no refusal."""
    if response.is_success or (missing_ok and response.status_code == 404):
        return response
    try:
        table = response.json()
        code, sentence = str(table["code"]), str(table["error"])
    except (ValueError, KeyError, TypeError):
        code, sentence = "http", f"the server answered with status {response.status_code}."
    retry = response.headers.get("retry-after", "")
    raise RefusedError(response.status_code, code, sentence, float(retry) if retry.isdigit() else None)


async def read_pieces(path: Path, start: int, progress: Callable[[int], None]) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        file.seek(start)
        while piece := file.read(PIECE):
            yield piece
            progress(file.tell())


def describe(name: str, path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"name": name, "bytes": path.stat().st_size, "sha256": digest}


def prepared_images(images: "Array | Sequence[Image.Image | Path | str]", spec: ClientSpec) -> Array:
    if isinstance(images, np.ndarray):
        prepared = np.asarray(images, dtype=np.float64)
    else:
        prepare = spec.preprocessing
        prepared = np.array([prepare(picture).astype(np.float64) for picture in opened(images)])
    if len(prepared) == 0:
        raise PolyNeXtError("there is no image to ask about: give at least one.")
    return prepared


def opened(images: "Iterable[Image.Image | Path | str]") -> list[Image.Image]:
    return [image if isinstance(image, Image.Image) else open_picture(Path(image)) for image in images]


def first_of(several: BaseExceptionGroup[PolyNeXtError]) -> PolyNeXtError:
    found: BaseException = several
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, PolyNeXtError)
    return found


def run(task: Coroutine[Any, Any, Result]) -> Result:
    """A coroutine's result in ordinary code, also where an event loop is running, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(task)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, task).result()
