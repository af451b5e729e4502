"""How the service says no."""

from typing import Any


class Refusal(Exception):  # noqa: N818  (it is an answer, not a fault)
    """A status, a word for programs, and one sentence for people; seconds to wait, if trying again makes sense."""

    def __init__(self, status: int, code: str, sentence: str, retry_after: float | None = None, **more: Any):
        super().__init__(sentence)
        self.status, self.code, self.sentence, self.retry_after, self.more = status, code, sentence, retry_after, more

    def to_json(self) -> dict[str, Any]:
        return {"code": self.code, "error": self.sentence, **self.more}


def disk_full() -> Refusal:
    return Refusal(507, "disk_full", "the server has no room left: try again later.", retry_after=60)
