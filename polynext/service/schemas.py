"""Requests and responses of the HTTP interface."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
Id = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class Error(BaseModel):
    """An error: `code` is for programs, `error` is a message for people."""

    model_config = ConfigDict(extra="allow")
    code: str
    error: str


class ServiceInfo(BaseModel):
    name: Literal["polynext"] = "polynext"
    version: str
    token_required: bool
    limits: dict[str, float]


class NetworkSummary(BaseModel):
    name: str
    fingerprint: str
    backend: str
    encrypts: bool
    works_in_browser: bool
    classes: list[str]
    image_shape: list[int]
    images: int
    upload_bytes: int
    seconds: float


class ManifestPart(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    name: Name
    bytes: Annotated[int, Field(ge=1, le=2**40)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Manifest(BaseModel):
    """The fingerprint of a client spec, and all parts of evaluation keys for it, in its order."""

    model_config = ConfigDict(extra="forbid", strict=True)
    client_spec: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    parts: Annotated[list[ManifestPart], Field(min_length=1, max_length=4096)]


class PartState(BaseModel):
    name: str
    bytes: int
    received: int
    complete: bool


class KeysState(BaseModel):
    id: str
    client_spec: str
    state: Literal["incomplete", "ready"]
    expires: float
    parts: list[PartState]


class JobState(BaseModel):
    id: str
    network: str
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


ERRORS = {
    400: "malformed HTTP",
    401: "missing or unknown token",
    404: "not found",
    409: "conflict with what the server has",
    410: "no longer available",
    413: "too large",
    422: "validation failed",
    429: "limit reached",
    503: "not ready",
    507: "the disk is full",
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI's description of a route's errors."""
    return {status: {"model": Error, "description": ERRORS[status]} for status in statuses}
