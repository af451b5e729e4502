"""Which models are ours, and what kind of function each of them is."""

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from timm.models import register_model

# Fully polynomial: inference is additions and multiplications only. Activation-free: no activation functions, but norms
# that divide by their input. Polynomial mixers: ours in a network of others, which keeps its activations elsewhere.
Kind = Literal["fully polynomial", "activation-free", "polynomial mixers"]

KINDS: dict[str, Kind] = {}

Entrypoint = TypeVar("Entrypoint", bound=Callable[..., Any])


def register(kind: Kind) -> Callable[[Entrypoint], Entrypoint]:
    """Decorates a function that creates a model: registers it with timm, by the function's name, as one of ours."""

    def as_ours(entrypoint: Entrypoint) -> Entrypoint:
        KINDS[entrypoint.__name__] = kind
        return register_model(entrypoint)

    return as_ours
