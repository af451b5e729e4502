"""Requests and responses of the HTTP interface. Client and service share them, and neither trusts the other: every
number and text has a limit."""

from typing import Annotated, Literal

from annotated_types import Ge, Le, Len
from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
Id = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Bytes = Annotated[int, Ge(0), Le(2**40)]
Time = Annotated[float, Ge(0), Le(1e12)]


class NetworkSummary(BaseModel):
    name: Name
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
    bytes: Annotated[int, Ge(1), Le(2**40)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Manifest(BaseModel):
    """The fingerprint of a client spec, and all parts of evaluation keys for it, in its order."""

    model_config = ConfigDict(extra="forbid", strict=True)
    client_spec: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    parts: Annotated[list[ManifestPart], Len(1, 4097)]


class PartState(BaseModel):
    name: Name
    bytes: Bytes
    received: Bytes
    complete: bool


class KeysState(BaseModel):
    id: Id
    client_spec: str
    state: Literal["incomplete", "ready"]
    expires: Time
    parts: Annotated[list[PartState], Len(1, 4097)]


class JobState(BaseModel):
    id: Id
    network: Name
    keys: Id
    state: Literal["queued", "running", "done", "failed", "expired"]
    position: Annotated[int, Ge(0), Le(2**31)] | None
    progress: Annotated[float, Ge(0), Le(1)]
    created: Time
    started: Time | None
    finished: Time | None
    expires: Time | None
    attempts: Annotated[int, Ge(0), Le(2**31)]
    error: str | None
    answer_bytes: Bytes | None
    retry_after: Time | None
