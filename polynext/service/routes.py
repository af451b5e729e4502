"""HTTP routes of the service, each a few lines around `service.py`."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import FileResponse, HTMLResponse, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, ValidationError

from polynext import __version__
from polynext.encrypted.messages import Id, JobState, KeysState, Manifest, Name, NetworkSummary, PartState
from polynext.service.connections import client_network
from polynext.service.reference import reference_page
from polynext.service.refusal import Refusal, errors
from polynext.service.service import Service
from polynext.service.settings import Caller, Tokens

MAX_MANIFEST_BYTES = 2**20
# A body arrives within these seconds, and one more for each of so many bytes.
BODY_SECONDS, SLOWEST_BODY = 30.0, 20_000
OCTETS = "application/octet-stream"


def request_body(content_type: str, schema: dict[str, str]) -> dict[str, Any]:
    """OpenAPI's description of a body that a route reads itself."""
    return {"requestBody": {"required": True, "content": {content_type: {"schema": schema}}}}


BINARY_BODY = request_body(OCTETS, {"type": "string", "format": "binary"})
MANIFEST_BODY = request_body("application/json", {"$ref": "#/components/schemas/Manifest"})

networks = APIRouter(prefix="/v1/networks", tags=["networks"])
keys = APIRouter(prefix="/v1/keys", tags=["keys"])
jobs = APIRouter(prefix="/v1/jobs", tags=["jobs"])
operation = APIRouter()


async def service_of(request: Request) -> Service:
    return request.app.state.service


async def caller_of(request: Request) -> Caller:
    """The caller whose token the request has; without tokens, the address that it comes from."""
    tokens: Tokens = request.app.state.tokens
    if not tokens.callers:
        settings = request.app.state.service.settings
        return Caller(f"@{client_network(request.client)}", settings.jobs, settings.keys)
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    caller = tokens.caller(given.strip()) if kind.lower() == "bearer" else None
    if caller is None:
        why = "does not know this token" if given.strip() else "needs a token"
        raise Refusal(401, "token", f"this service {why}: send `Authorization: Bearer TOKEN` with one of its tokens.")
    return caller


ServiceArg = Annotated[Service, Depends(service_of)]
CallerArg = Annotated[Caller, Depends(caller_of)]


async def limited(request: Request, most: int) -> AsyncIterator[bytes]:
    """The pieces of a body that has at most `most` bytes and arrives in time."""
    too_large = Refusal(413, "too_large", f"the body is longer than {most} bytes, the limit of one request.")
    if int(request.headers.get("content-length", 0)) > most:
        raise too_large
    total, stream, start = 0, request.stream(), asyncio.get_running_loop().time()
    while True:
        try:
            async with asyncio.timeout_at(start + BODY_SECONDS + total / SLOWEST_BODY):
                piece = await anext(stream, None)
        except TimeoutError as error:
            message = f"the body arrives slower than {SLOWEST_BODY} bytes per second: send it again."
            raise Refusal(408, "slow_body", message) from error
        if piece is None:
            return
        total += len(piece)
        if total > most:
            raise too_large
        yield piece


def validation_message(found: Any) -> str:
    """A message for pydantic's first error, which does not repeat the given value."""
    first = found[0]
    where = ".".join(str(step) for step in first["loc"] if step not in ("body", "query", "path"))
    return f"`{where or 'body'}` is invalid: {first['msg'].lower()}."


# Networks


@networks.get("", responses=errors(401))
async def list_networks(service: ServiceArg, caller: CallerArg) -> list[NetworkSummary]:
    """The networks of this service."""
    return [network.summary() for network in service.networks.values()]


@networks.get("/{name}", responses=errors(401, 404, 422))
async def client_spec(name: Name, service: ServiceArg, caller: CallerArg) -> dict[str, Any]:
    """The client spec: all that a client needs to make keys, encrypt and decrypt, and no weights."""
    return service.find_network(name).description


@networks.get(
    "/{name}/samples/{sample}",
    response_class=FileResponse,
    responses={200: {"content": {"image/png": {}}}, **errors(401, 404, 422)},
)
async def sample_image(name: Name, sample: Name, service: ServiceArg, caller: CallerArg) -> FileResponse:
    """A sample image of a network."""
    samples = service.find_network(name).samples
    if sample not in samples:
        raise Refusal(404, "unknown_sample", f"{name} has no sample {sample!r}: its client spec lists them.")
    return FileResponse(samples[sample], media_type="image/png")


# Keys


@keys.post(
    "",
    status_code=201,
    responses={200: {"model": KeysState, "description": "already known"}, **errors(400, 401, 404, 408, 413, 422, 429)},
    openapi_extra=MANIFEST_BODY,
)
async def announce_keys(request: Request, response: Response, service: ServiceArg, caller: CallerArg) -> KeysState:
    """Announce evaluation keys. The response says which bytes the server still needs."""
    data = b"".join([piece async for piece in limited(request, MAX_MANIFEST_BYTES)])
    try:
        manifest = Manifest.model_validate_json(data)
    except ValidationError as error:
        raise Refusal(422, "invalid", validation_message(error.errors())) from error
    announced, new = service.announce(manifest, caller)
    response.status_code = 201 if new else 200
    return service.describe_keys(announced)


@keys.get("/{keys}", responses=errors(401, 404, 422))
async def keys_state(keys: Id, service: ServiceArg, caller: CallerArg) -> KeysState:
    """How many bytes of each part have arrived."""
    return service.describe_keys(service.find_keys(keys, caller))


@keys.put(
    "/{keys}/parts/{part}", responses=errors(400, 401, 404, 408, 409, 413, 422, 429, 507), openapi_extra=BINARY_BODY
)
async def receive_part(
    keys: Id,
    part: Name,
    request: Request,
    service: ServiceArg,
    caller: CallerArg,
    offset: Annotated[int, Query(ge=0, le=2**40)] = 0,
) -> PartState:
    """Send bytes of a part, from an offset: all that is missing, or some of it."""
    body = limited(request, service.settings.chunk_bytes)
    return await service.receive_part(keys, part, offset, body, caller)


@keys.delete("/{keys}", status_code=204, responses=errors(401, 404, 422))
async def delete_keys(keys: Id, service: ServiceArg, caller: CallerArg) -> None:
    """Delete keys."""
    service.delete_keys(keys, caller)


# Jobs


@jobs.put(
    "/{job}",
    status_code=202,
    responses={
        200: {"model": JobState, "description": "already known"},
        **errors(400, 401, 404, 408, 409, 413, 422, 429, 503, 507),
    },
    openapi_extra=BINARY_BODY,
)
async def submit_job(
    job: Id, network: Name, keys: Id, request: Request, response: Response, service: ServiceArg, caller: CallerArg
) -> JobState:
    """Submit a job: one ciphertext. The client chooses the job's id; submitting it again does not run it again."""
    already_known = service.store.job(job) is not None
    accepted = await service.accept(job, network, keys, limited(request, 2**40), caller)
    response.status_code = 200 if already_known else 202
    return service.describe_job(accepted)


@jobs.get("/{job}", responses=errors(401, 404, 422))
async def job_state(job: Id, service: ServiceArg, caller: CallerArg) -> JobState:
    """The state of a job."""
    return service.describe_job(service.find_job(job, caller))


@jobs.get(
    "/{job}/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}, **errors(401, 404, 422)},
)
async def job_events(job: Id, service: ServiceArg, caller: CallerArg) -> StreamingResponse:
    """The state of a job as server-sent events, at every change until the job ends."""
    service.find_job(job, caller)

    async def events() -> AsyncIterator[str]:
        async for state in service.follow(job):
            yield ": alive\n\n" if state is None else f"event: job\ndata: {state.model_dump_json()}\n\n"

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(events(), media_type="text/event-stream", headers=headers)


@jobs.get(
    "/{job}/answer",
    response_class=FileResponse,
    responses={200: {"content": {OCTETS: {}}}, **errors(401, 404, 409, 410, 422)},
)
async def job_answer(job: Id, service: ServiceArg, caller: CallerArg) -> FileResponse:
    """The encrypted logits, until they expire or are deleted."""
    return FileResponse(service.answer(job, caller), media_type=OCTETS, headers={"Cache-Control": "no-store"})


@jobs.delete("/{job}", status_code=204, responses=errors(401, 404, 422))
async def delete_job(job: Id, service: ServiceArg, caller: CallerArg) -> None:
    """Cancel a job, or delete its answer."""
    service.delete_job(job, caller)


# Operation


class ServiceInfo(BaseModel):
    name: Literal["polynext"] = "polynext"
    version: str
    token_required: bool
    limits: dict[str, float]


@operation.get("/v1/service", tags=["service"])
async def about(request: Request, service: ServiceArg) -> ServiceInfo:
    """The version and the limits of this service."""
    names = ("queue", "jobs", "keys", "keys_seconds", "answer_seconds", "chunk_bytes")
    limits = {name: getattr(service.settings, name) for name in names}
    return ServiceInfo(version=__version__, token_required=bool(request.app.state.tokens.callers), limits=limits)


@operation.get("/health", tags=["operation"])
async def health() -> dict[str, str]:
    """Whether the process is alive."""
    return {"status": "alive"}


@operation.get("/ready", tags=["operation"], responses=errors(503))
async def ready(service: ServiceArg) -> dict[str, str]:
    """Whether the workers are ready for jobs."""
    if service.stopping or not service.workers.ready:
        raise Refusal(503, "not_ready", "the workers are starting: try again soon.", retry_after=2)
    return {"status": "ready"}


@operation.get(
    "/metrics",
    tags=["operation"],
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}}, **errors(401)},
)
async def metrics(service: ServiceArg, caller: CallerArg) -> Response:
    """Metrics for Prometheus. They need a token if the service has tokens."""
    return Response(generate_latest(service.measure().registry), media_type=CONTENT_TYPE_LATEST)


@operation.get("/docs", include_in_schema=False)
async def docs(request: Request, service: ServiceArg) -> HTMLResponse:
    network = next(iter(service.networks))
    return HTMLResponse(reference_page(request.app.openapi(), str(request.base_url), network))


@operation.api_route("/v1/offers{rest:path}", methods=["GET", "POST", "PUT", "DELETE"], include_in_schema=False)
async def old_route(rest: str) -> None:
    raise Refusal(410, "moved", "/v1/offers is now /v1/networks: use the same version of polynext on both sides.")
