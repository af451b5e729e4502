"""The service's error responses."""

from typing import Any


class Refusal(Exception):  # noqa: N818  (a response, not a fault of the service)
    """An HTTP status, a `code` for programs and a `message` for people.

    `retry_after` is in seconds, if the request may succeed later. `fields` are added to the JSON body.
    """

    def __init__(self, status: int, code: str, message: str, retry_after: float | None = None, **fields: Any):
        super().__init__(message)
        self.status, self.code, self.message, self.retry_after, self.fields = status, code, message, retry_after, fields

    def to_json(self) -> dict[str, Any]:
        return {"code": self.code, "error": self.message, **self.fields}


def disk_full() -> Refusal:
    return Refusal(507, "disk_full", "the server's disk is full: try again later.", retry_after=60)
