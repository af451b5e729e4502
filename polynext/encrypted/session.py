"""Requests of a client to one service, which is not trusted: the size of every response is limited."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
from pydantic import TypeAdapter, ValidationError

from polynext.encrypted.messages import JobState, KeysState, ManifestPart
from polynext.errors import PolyNeXtError

CHUNK_BYTES = 2**20
# The longest responses: JSON, one event and all events of a job.
MOST_JSON_BYTES, MOST_LINE_BYTES, MOST_EVENT_BYTES = 8 * 2**20, 2**16, 64 * 2**20
# Requests are repeated if the response has a Retry-After header or one of these statuses, but not for these codes.
RETRIED_STATUSES, FINAL_CODES = (502, 503, 504), ("too_many_keys",)

# Called with the name of a step and the share of it that is done.
Progress = Callable[[str, float], None]
Result = TypeVar("Result")


class RefusedError(PolyNeXtError):
    """The server refused a request. `code` names the reason for programs."""

    def __init__(self, status: int, code: str, message: str, retry_after: float | None = None):
        super().__init__(message)
        self.status, self.code, self.retry_after = status, code, retry_after


@dataclass
class Session:
    """Requests to one server until a deadline. They are repeated while that may help."""

    http: httpx.AsyncClient
    url: str
    deadline: float

    async def request(
        self,
        method: str,
        path: str,
        most: int = MOST_JSON_BYTES,
        missing_ok: bool = False,
        retry: bool = True,
        **options: Any,
    ) -> bytes:
        """The body of the response, which has at most `most` bytes."""

        async def attempt() -> bytes:
            async with self.http.stream(method, path, **options) as response:
                body = b"".join([piece async for piece in self.limited(response, most)])
                if not (response.is_success or (missing_ok and response.status_code == 404)):
                    raise refusal_in(response, body)
                return body

        return await (self.retry(attempt) if retry else attempt())

    async def json(self, method: str, path: str, **options: Any) -> Any:
        body = await self.request(method, path, **options)
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            raise self.not_understood("it is not JSON") from error

    async def read(self, kind: type[Result], method: str, path: str, **options: Any) -> Result:
        """The response as a message of this type."""
        return self.parse(kind, await self.request(method, path, **options))

    def parse(self, kind: type[Result], body: bytes) -> Result:
        try:
            return TypeAdapter(kind).validate_json(body)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "body"
            raise self.not_understood(f"{where}: {first['msg'].lower()}") from error

    def not_understood(self, reason: str) -> PolyNeXtError:
        return PolyNeXtError(
            f"{self.url} sent a response that this version does not understand ({printable(reason)}): check the "
            "address, and use the same version of polynext on both sides."
        )

    async def limited(self, response: httpx.Response, most: int) -> AsyncIterator[bytes]:
        """The pieces of a body of at most `most` bytes. It is not decompressed: requests do not ask for that."""
        total = 0
        async for piece in response.aiter_raw():
            total += len(piece)
            if total > most:
                raise self.not_understood(f"it has more than {most} bytes")
            yield piece

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

    async def announce(self, fingerprint: str, parts: list[ManifestPart]) -> KeysState:
        manifest = {"client_spec": fingerprint, "parts": [part.model_dump() for part in parts]}
        return await self.read(KeysState, "POST", "v1/keys", json=manifest)

    async def send_part(self, keys: str, part: ManifestPart, path: Path, progress: Callable[[int], None]) -> None:
        """Send the bytes of a part that the server does not have."""

        async def attempt() -> None:
            state = await self.read(KeysState, "GET", f"v1/keys/{keys}", retry=False)
            received = next((each.received for each in state.parts if each.name == part.name), 0)
            if received < part.bytes:  # another process with the same keys may have sent it
                where = f"v1/keys/{keys}/parts/{part.name}"
                chunks = read_chunks(path, received, progress)
                await self.request("PUT", where, retry=False, params={"offset": received}, content=chunks)

        await self.retry(attempt)

    async def wait_for(self, job: str, progress: Progress) -> None:
        """Follow the job's server-sent events until it is done. Raises PolyNeXtError if it fails."""

        async def attempt() -> None:
            async with self.http.stream("GET", f"{job}/events") as response:
                if not response.is_success:
                    pieces = [piece async for piece in self.limited(response, MOST_JSON_BYTES)]
                    raise refusal_in(response, b"".join(pieces))
                async for line in self.lines(response):
                    if line.startswith(b"data: ") and self.is_done(self.parse(JobState, line[6:]), progress):
                        return
            raise httpx.RemoteProtocolError("the connection closed early")

        await self.retry(attempt)

    async def lines(self, response: httpx.Response) -> AsyncIterator[bytes]:
        text = b""
        async for piece in self.limited(response, MOST_EVENT_BYTES):
            *complete, text = (text + piece).split(b"\n")
            for line in complete:
                yield line
            if len(text) > MOST_LINE_BYTES:
                raise self.not_understood(f"an event has more than {MOST_LINE_BYTES} bytes")

    def is_done(self, job: JobState, progress: Progress) -> bool:
        if job.state == "failed":
            raise PolyNeXtError(f"the job failed at {self.url}: {printable(job.error or '')}")
        if job.state == "expired":
            raise PolyNeXtError(f"the answer at {self.url} has expired: try again.")
        queued = f"in the queue behind {job.position}" if job.position else "in the queue"
        progress(queued if job.state == "queued" else "computing", job.progress)
        return job.state == "done"


def refusal_in(response: httpx.Response, body: bytes) -> RefusedError:
    try:
        table = json.loads(body)
        code, message = str(table["code"]), printable(str(table["error"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        code, message = "http", f"the server answered with status {response.status_code}."
    retry = response.headers.get("retry-after", "")
    seconds = float(retry) if len(retry) < 10 and retry.isascii() and retry.isdigit() else None
    return RefusedError(response.status_code, code, message, seconds)


def printable(text: str, most: int = 500) -> str:
    """A server's text without control characters, which could rewrite a terminal."""
    return "".join(letter for letter in text[:most] if letter.isprintable())


async def read_chunks(path: Path, start: int, progress: Callable[[int], None]) -> AsyncIterator[bytes]:
    """The bytes of a file from `start`. Calls `progress` with the number of bytes read."""
    with path.open("rb") as file:
        file.seek(start)
        while chunk := file.read(CHUNK_BYTES):
            yield chunk
            progress(file.tell())
