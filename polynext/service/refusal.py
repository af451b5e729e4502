"""The service's error responses, and their description in its HTTP interface."""

from typing import Any

from pydantic import BaseModel, ConfigDict


class Refusal(Exception):  # noqa: N818  (a response, not a fault of the service)
    """An HTTP status, a `code` for programs and a `message` for people.

    `retry_after` is in seconds, if the request may succeed later. `fields` are added to the JSON body.
    """

    def __init__(self, status: int, code: str, message: str, retry_after: float | None = None, **fields: Any):
        super().__init__(message)
        self.status, self.code, self.retry_after = status, code, retry_after
        self.body = {"code": code, "error": message, **fields}


def disk_full() -> Refusal:
    return Refusal(507, "disk_full", "the server's disk is full: try again later.", retry_after=60)


class Error(BaseModel):
    """An error: `code` is for programs, `error` is a message for people."""

    model_config = ConfigDict(extra="allow")
    code: str
    error: str


MEANINGS = {
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
    return {status: {"model": Error, "description": MEANINGS[status]} for status in statuses}
