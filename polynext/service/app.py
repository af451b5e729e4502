"""The service over HTTP: FastAPI routes, each a few lines around `service.py`."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, StreamingResponse
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from polynext import __version__
from polynext.service.log import logger, tell
from polynext.service.networks import Network
from polynext.service.reference import reference_page
from polynext.service.refusal import Refusal
from polynext.service.service import Service
from polynext.service.settings import Client, Tokens
from polynext.service.store import PartInfo

PAGE = Path(__file__).parent / "page"
NO_PAGE = """<!doctype html><meta charset="utf-8"><title>polynext</title>
<p>This is a service of encrypted inference. Its page is not built: <code>make page</code> in a checkout builds it.</p>
<p>The service itself works: <a href="docs">its interface</a>, <a href="v1/offers">its offers</a>.</p>
"""
LONGEST_MANIFEST = 2**20
OCTETS = "application/octet-stream"

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self' blob:; "
        "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; connect-src 'self'; font-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
Id = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class Refused(BaseModel):
    """Why something was refused: `code` for programs, `error` for people."""

    model_config = ConfigDict(extra="allow")
    code: str
    error: str


class ServiceInfo(BaseModel):
    name: Literal["polynext"] = "polynext"
    version: str
    token_required: bool
    limits: dict[str, float]


class OfferSummary(BaseModel):
    name: str
    fingerprint: str
    backend: str
    encrypts: bool
    classes: list[str]
    image_shape: list[int]
    images: int
    upload_bytes: int
    seconds: float


class PartGiven(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    name: Name
    bytes: Annotated[int, Field(ge=1, le=2**40)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Manifest(BaseModel):
    """All parts of evaluation keys, in the offer's order."""

    model_config = ConfigDict(extra="forbid", strict=True)
    offer: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    parts: Annotated[list[PartGiven], Field(min_length=1, max_length=4096)]


class PartState(BaseModel):
    name: str
    bytes: int
    received: int
    complete: bool


class KeysState(BaseModel):
    id: str
    offer: str
    state: Literal["incomplete", "ready"]
    expires: float
    parts: list[PartState]


class JobState(BaseModel):
    id: str
    offer: str
    keys: str
    state: Literal["queued", "running", "done", "failed", "expired"]
    position: int | None
    progress: float
    created: float
    started: float | None
    finished: float | None
    expires: float | None
    attempts: int
    error: str | None
    answer_bytes: int | None
    retry_after: float | None


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What a route may refuse with, for the description."""
    return {status: {"model": Refused, "description": MEANINGS[status]} for status in statuses}


MEANINGS = {
    400: "the request is not HTTP as it should be",
    401: "a token is needed",
    404: "there is no such thing",
    409: "it does not go together with what is here",
    410: "there is no answer any more",
    413: "too large",
    422: "it is not what it should be",
    429: "too much at a time",
    503: "not ready",
    507: "no room",
}
MATTER = {"requestBody": {"required": True, "content": {OCTETS: {"schema": {"type": "string", "format": "binary"}}}}}


def create_app(service: Service, tokens: Tokens | None = None) -> FastAPI:
    """The application of a service that was started, or will be."""
    known = tokens or Tokens()
    app = FastAPI(
        title="polynext encrypted inference",
        version=__version__,
        description="Networks that answer on ciphertexts. Keys are made by clients; none that decrypts comes here.",
        docs_url=None,  # FastAPI's own page would load scripts from another host
        redoc_url=None,
    )
    app.add_middleware(Watch, service=service)
    handle_errors(app)

    def client_of(request: Request) -> Client:
        if not known.tokens:
            address = request.client.host if request.client else "unknown"
            return Client(f"@{address}", service.settings.jobs, service.settings.keys)
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        client = known.client(given.strip()) if kind.lower() == "bearer" else None
        if client is None:
            why = "does not know this token" if given.strip() else "needs a token"
            raise Refusal(401, "token", f"this service {why}: send one of its own as `Authorization: Bearer TOKEN`.")
        return client

    def offered(name: str) -> Network:
        if name not in service.networks:
            raise Refusal(404, "unknown_offer", f"there is no network {name!r} here: see the list of offers.")
        return service.networks[name]

    Asking = Annotated[Client, Depends(client_of)]  # noqa: N806  (a type)

    @app.get("/v1/service", tags=["service"])
    async def about() -> ServiceInfo:
        """What this is, and what it allows."""
        settings = service.settings
        names = ("queue", "jobs", "keys", "keys_seconds", "answer_seconds", "chunk_bytes")
        limits = {name: getattr(settings, name) for name in names}
        return ServiceInfo(version=__version__, token_required=bool(known.tokens), limits=limits)

    @app.get("/v1/offers", tags=["offers"], responses=refusals(401))
    async def offers(client: Asking) -> list[OfferSummary]:
        """The networks that can be asked."""
        return [OfferSummary(**network.summary()) for network in service.networks.values()]

    @app.get("/v1/offers/{name}", tags=["offers"], responses=refusals(401, 404, 422))
    async def offer(name: Name, client: Asking) -> dict[str, Any]:
        """All that a client needs to make keys, encrypt and decrypt, and no weights."""
        return offered(name).description

    @app.get(
        "/v1/offers/{name}/samples/{sample}",
        tags=["offers"],
        response_class=FileResponse,
        responses={200: {"content": {"image/png": {}}}, **refusals(401, 404, 422)},
    )
    async def sample(name: Name, sample: Name, client: Asking) -> FileResponse:
        """A picture to try the network with."""
        samples = offered(name).samples
        if sample not in samples:
            raise Refusal(404, "unknown_sample", f"{name} has no sample {sample!r}: see its offer.")
        return FileResponse(samples[sample], media_type="image/png")

    @app.post(
        "/v1/keys",
        tags=["keys"],
        status_code=201,
        responses={200: {"model": KeysState, "description": "known"}, **refusals(400, 401, 404, 413, 422, 429, 507)},
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Manifest"}}},
            }
        },
    )
    async def announce(request: Request, response: Response, client: Asking) -> KeysState:
        """Announce evaluation keys; the answer tells which bytes are still wanted."""
        data = b"".join([piece async for piece in bounded(request, LONGEST_MANIFEST)])
        try:
            manifest = Manifest.model_validate_json(data)
        except ValidationError as error:
            raise Refusal(422, "invalid", what_is_wrong(error.errors())) from error
        parts = [PartInfo(part.name, part.bytes, part.sha256) for part in manifest.parts]
        keys, new = service.announce(manifest.offer, parts, client)
        response.status_code = 201 if new else 200
        return KeysState(**service.describe_keys(keys))

    @app.get("/v1/keys/{keys}", tags=["keys"], responses=refusals(401, 404, 422))
    async def keys_state(keys: Id, client: Asking) -> KeysState:
        """How much of announced keys has arrived."""
        return KeysState(**service.describe_keys(service.find_keys(keys, client)))

    @app.put(
        "/v1/keys/{keys}/parts/{part}",
        tags=["keys"],
        responses=refusals(400, 401, 404, 409, 413, 422, 507),
        openapi_extra=MATTER,
    )
    async def receive_part(
        keys: Id,
        part: Name,
        request: Request,
        client: Asking,
        offset: Annotated[int, Query(ge=0, le=2**40)] = 0,
    ) -> PartState:
        """Send bytes of a part from an offset on: the rest, or a piece of it."""
        body = bounded(request, service.settings.chunk_bytes)
        return PartState(**await service.receive_part(keys, part, offset, body, client))

    @app.delete("/v1/keys/{keys}", tags=["keys"], status_code=204, responses=refusals(401, 404, 422))
    async def forget_keys(keys: Id, client: Asking) -> None:
        """Have keys forgotten."""
        service.forget_keys(keys, client)

    @app.put(
        "/v1/jobs/{job}",
        tags=["jobs"],
        status_code=202,
        responses={
            200: {"model": JobState, "description": "known"},
            **refusals(400, 401, 404, 409, 413, 422, 429, 503, 507),
        },
        openapi_extra=MATTER,
    )
    async def ask(job: Id, offer: Name, keys: Id, request: Request, response: Response, client: Asking) -> JobState:
        """Ask: the body is one ciphertext. The client chooses the job's name; sending it again is no second job."""
        known_before = service.store.job(job) is not None
        body = bounded(request, 2**40)
        accepted = await service.accept(job, offer, keys, body, client)
        response.status_code = 200 if known_before else 202
        return JobState(**service.describe_job(accepted))

    @app.get("/v1/jobs/{job}", tags=["jobs"], responses=refusals(401, 404, 422))
    async def job_state(job: Id, client: Asking) -> JobState:
        """How a job stands."""
        return JobState(**service.describe_job(service.find_job(job, client)))

    @app.get(
        "/v1/jobs/{job}/events",
        tags=["jobs"],
        response_class=StreamingResponse,
        responses={200: {"content": {"text/event-stream": {}}}, **refusals(401, 404, 422)},
    )
    async def job_events(job: Id, client: Asking) -> StreamingResponse:
        """The same as server-sent events, at every change until the job ends."""
        service.find_job(job, client)

        async def events() -> AsyncIterator[str]:
            async for state in service.follow(job, client):
                yield ": alive\n\n" if state is None else f"event: job\ndata: {json.dumps(state)}\n\n"

        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(events(), media_type="text/event-stream", headers=headers)

    @app.get(
        "/v1/jobs/{job}/answer",
        tags=["jobs"],
        response_class=FileResponse,
        responses={200: {"content": {OCTETS: {}}}, **refusals(401, 404, 409, 410, 422)},
    )
    async def answer(job: Id, client: Asking) -> FileResponse:
        """The encrypted logits, until they expire or are deleted."""
        return FileResponse(service.answer(job, client), media_type=OCTETS, headers={"Cache-Control": "no-store"})

    @app.delete("/v1/jobs/{job}", tags=["jobs"], status_code=204, responses=refusals(401, 404, 422))
    async def forget_job(job: Id, client: Asking) -> None:
        """Cancel a job, or have its answer forgotten."""
        service.forget_job(job, client)

    @app.get("/health", tags=["operation"])
    async def health() -> dict[str, str]:
        """Whether the process is alive."""
        return {"status": "alive"}

    @app.get("/ready", tags=["operation"], responses=refusals(503))
    async def ready() -> dict[str, str]:
        """Whether jobs can be worked on now."""
        if service.stopping or not service.workers.ready:
            raise Refusal(503, "not_ready", "the workers are being started: try again soon.", retry_after=2)
        return {"status": "ready"}

    @app.get("/metrics", tags=["operation"], response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Counters for Prometheus."""
        return Response(generate_latest(service.measure().registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(reference_page(app.openapi()))

    if (PAGE / "index.html").is_file():
        app.mount("/", StaticFiles(directory=PAGE, html=True), name="page")
    else:

        @app.get("/", include_in_schema=False)
        async def no_page() -> HTMLResponse:
            return HTMLResponse(NO_PAGE)

    describe_models(app)
    return app


def describe_models(app: FastAPI) -> None:
    """The manifest is read by hand, to bound its size first, so FastAPI does not know it by itself."""
    made = app.openapi()
    made["components"]["schemas"] |= {
        model.__name__: model.model_json_schema(ref_template="#/components/schemas/{model}")
        for model in (Manifest, PartGiven)
    }
    made["components"]["schemas"]["Manifest"].pop("$defs")


async def bounded(request: Request, most: int) -> AsyncIterator[bytes]:
    """The body in pieces, as long as it has no more bytes than this."""
    too_large = Refusal(413, "too_large", f"the body is longer than {most} bytes, which is the most at a time.")
    if int(request.headers.get("content-length", 0)) > most:
        raise too_large
    total = 0
    async for piece in request.stream():
        total += len(piece)
        if total > most:
            raise too_large
        yield piece


def what_is_wrong(errors: Any) -> str:
    """One sentence for what pydantic found; it never repeats what was given."""
    first = errors[0]
    where = ".".join(str(step) for step in first["loc"] if step not in ("body", "query", "path"))
    return f"`{where or 'body'}` is not as it should be: {first['msg'].lower()}."


def refused(refusal: Refusal) -> JSONResponse:
    headers = {"Retry-After": f"{max(1, round(refusal.retry_after))}"} if refusal.retry_after is not None else {}
    if refusal.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(refusal.to_json(), refusal.status, headers)


def handle_errors(app: FastAPI) -> None:
    """Every refusal is JSON of one shape."""

    @app.exception_handler(Refusal)
    async def refuse(_: Request, refusal: Refusal) -> JSONResponse:
        return refused(refusal)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        return refused(Refusal(422, "invalid", what_is_wrong(error.errors())))

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> JSONResponse:
        code = re.sub(r"\W+", "_", str(error.detail).lower()).strip("_")
        answer = refused(Refusal(error.status_code, code, f"{str(error.detail).rstrip('.').lower()}."))
        answer.headers.update(error.headers or {})
        return answer


class Watch:
    """Around everything: counts and logs each request, adds headers, and turns what nobody expected into a sentence."""

    def __init__(self, app: ASGIApp, service: Service):
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.monotonic(), 0

        async def watched(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [
                    *message["headers"],
                    *((name.lower().encode(), value.encode()) for name, value in HEADERS.items()),
                ]
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except ClientDisconnect:
            status = 499
        except asyncio.CancelledError:
            raise
        except Exception:
            logger.exception("a request failed unexpectedly")
            if status == 0:
                sentence = "the server made a mistake, and its operator can read which."
                await refused(Refusal(500, "mistake", sentence))(scope, receive, watched)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self.service.metrics.requests.labels(scope["method"], route, status).inc()
            tell(
                "request",
                method=scope["method"],
                route=route,
                status=status,
                seconds=round(time.monotonic() - start, 3),
            )
