"""The limits of an encrypted run, and what happens if a network exceeds them."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from polynext.encrypted.runtime.cost import MEBIBYTE
from polynext.errors import PolyNeXtError, require_share

# Limits are raised so many times to find some that a refused network fits.
MOST_RAISES = 4

# Called with what the planner does.
Progress = Callable[[str], None]


class DoesNotFitError(PolyNeXtError):
    """The network cannot be run encrypted within the limits: it takes `excess` times as much as one of them allows.

    `needs` is that limit's name and the value that would suffice, if one would.
    """

    def __init__(self, message: str, excess: float = math.inf, needs: tuple[str, float] | None = None):
        super().__init__(message)
        self.excess, self.needs = excess, needs


class TooImpreciseError(DoesNotFitError):
    """The error of the result would be larger than the limit."""


@dataclass(frozen=True)
class Limits:
    """Limits of an encrypted run.

    `memory` and `keys` are bytes. `ring_degrees` are those to try, by default all that the backend supports. `error` is
    the error of the logits relative to the largest logit, and `flips` the share of predictions that change.

    `clients` are those that the network is prepared for: "any", also the browser page and servers without the native
    evaluator, with SEAL's keys; or "python", with hybrid keys, which are smaller and faster and allow a ring of 2^16.
    """

    memory: int = 2048 * MEBIBYTE
    keys: int = 300 * MEBIBYTE
    ring_degrees: tuple[int, ...] | None = None
    error: float = 1e-3
    flips: float = 0.01
    clients: Literal["any", "python"] = "any"

    def __post_init__(self) -> None:
        require_share(error=self.error, flips=self.flips)
        if self.clients not in ("any", "python"):
            raise PolyNeXtError(f"`clients` is {self.clients!r}: choose any or python.")

    @property
    def hybrid_keys(self) -> bool:
        return self.clients == "python"

    def options(self, given: "Limits") -> str:
        """The options of the command line that set these limits instead of the given ones."""
        options = {
            "--memory": (self.memory, given.memory, f"{math.ceil(self.memory / MEBIBYTE)}"),
            "--key-memory": (self.keys, given.keys, f"{math.ceil(self.keys / MEBIBYTE)}"),
            "--error": (self.error, given.error, f"{self.error:.2g}"),
            "Limits(flips=...) of": (self.flips, given.flips, f"{self.flips:.2g}"),
        }
        return " ".join(f"{name} {text}" for name, (own, other, text) in options.items() if own != other)


def raised_limits(
    limits: Limits, refusal: DoesNotFitError, search: Callable[[Limits], object], report: Progress
) -> Limits | None:
    """Limits that the refused network fits, if raising a few of them suffices."""
    for _ in range(MOST_RAISES):
        if refusal.needs is None:
            return None
        name, value = refusal.needs
        rounded: dict[str, Any] = {
            "memory": MEBIBYTE * math.ceil(value / MEBIBYTE),
            "keys": MEBIBYTE * math.ceil(value / MEBIBYTE),
            "error": rounded_up(value),
            "flips": rounded_up(value),
        }
        if not value <= 1 and name in ("error", "flips"):
            return None
        limits = replace(limits, **{name: rounded[name]})
        report(f"does not fit: trying {name} {rounded[name]:g}")
        try:
            search(limits)
            return limits
        except DoesNotFitError as error:
            refusal = error
    return None


def rounded_up(value: float) -> float:
    """A share with two significant digits."""
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return min(1.0, round(math.ceil(value / step) * step, 12))
