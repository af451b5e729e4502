"""Errors and the description of the service in its HTTP interface. `polynext.encrypted.messages` has the rest."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


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


ERRORS = {
    400: "malformed HTTP",
    401: "missing or unknown token",
    404: "not found",
    408: "the body did not arrive in time",
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
