"""Config dataclasses: field types with their ranges, and how values are checked.

The ranges are `annotated_types` beside the fields, and pydantic checks them. The configs themselves stay plain
dataclasses, so that `dataclasses.replace` and the options that tyro makes of them work as usual.
"""

import dataclasses
import json
import typing
from typing import Annotated, Any, Literal, TypeVar

from annotated_types import Ge, Gt, Le, Lt
from pydantic import ConfigDict, TypeAdapter, ValidationError

from polynext.errors import PolyNeXtError

NonNegative = Annotated[float, Ge(0)]
Positive = Annotated[float, Gt(0)]
Share = Annotated[float, Ge(0), Le(1)]
ShareBelowOne = Annotated[float, Ge(0), Lt(1)]
NonNegativeInt = Annotated[int, Ge(0)]
PositiveInt = Annotated[int, Ge(1)]

# What training keeps for the backward pass: `polynext.acceleration.save_memory`.
Memory = Literal["plain", "lean", "least"]


class Config:
    """Base of the config dataclasses: an unknown field is an error, and no value is converted to another type."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    def check(self) -> None:
        """Raises `PolyNeXtError` if a field is out of its range."""
        validate(type(self), dataclasses.asdict(self))  # type: ignore[call-overload]


AnyConfig = TypeVar("AnyConfig", bound=Config)


def validate(kind: type[AnyConfig], values: dict[str, Any], source: str = "") -> AnyConfig:
    """A config of plain values. They are checked as JSON, where a list may be a tuple and a string a path."""
    try:
        return TypeAdapter(kind).validate_json(json.dumps(values, default=str))
    except ValidationError as error:
        raise PolyNeXtError(message(kind, error.errors()[0], source)) from error


RANGES = {
    "greater_than_equal": "at least {ge:g}",
    "greater_than": "more than {gt:g}",
    "less_than_equal": "at most {le:g}",
    "less_than": "less than {lt:g}",
}


def message(kind: type[Config], error: Any, source: str) -> str:
    """A message for one of pydantic's errors. A field without a source is named as an option."""
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    *parents, last = [part for part in error["loc"] if isinstance(part, str)] or ["the config"]
    name = ".".join([*parents, last])
    place = f"{source}: {name}" if source else f"`{name}`"
    if error["type"] == "unexpected_keyword_argument":
        section: Any = kind
        for parent in parents:
            section = typing.get_type_hints(section)[parent]
        known = ", ".join(field.name for field in dataclasses.fields(section))
        return f"{place} is not a field in this version: the fields are {known}."
    if error["type"] in RANGES:
        return f"{place} is {error['input']}: give {RANGES[error['type']].format(**error['ctx'])}."
    return f"{place} is {error['input']!r}: give {error['msg'].removeprefix('Input should be ')}."
