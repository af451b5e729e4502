"""Configs as YAML."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter

from polynext.config.training import TrainConfig
from polynext.errors import PolyNeXtError
from polynext.files import reading
from polynext.schema import AnyConfig, Config, validate

LONGEST = 100_000  # characters; configs are much shorter


def to_yaml(config: Config) -> str:
    """A config as text that `from_yaml` reads."""
    return yaml.safe_dump(TypeAdapter(type(config)).dump_python(config, mode="json"), sort_keys=False)


def field_values(config: Config) -> dict[str, str]:
    """The fields of a config and their values as text, such as "optimizer.lr" and "0.004"."""

    def values(section: dict[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
        for name, value in section.items():
            if isinstance(value, dict):
                yield from values(value, f"{prefix}{name}.")
            else:
                yield f"{prefix}{name}", repr(value)

    return dict(values(TypeAdapter(type(config)).dump_python(config, mode="json"), ""))


def from_yaml(text: str, source: str = "the configuration", kind: type[AnyConfig] = TrainConfig) -> AnyConfig:  # type: ignore[assignment]
    """The config that `to_yaml` wrote, of this version or an earlier one.

    Args:
        text: the YAML; missing fields get their defaults, and an unknown field is an error.
        source: the file's name, for error messages.
        kind: the class of the config.
    """
    if len(text) > LONGEST:
        raise PolyNeXtError(f"{source} has {len(text)} characters: give a config.yaml that a run wrote.")
    with reading(f"{source} cannot be read: give a config.yaml that a run wrote."):
        try:
            values = yaml.load(text, Loader)
        except yaml.YAMLError as error:
            raise PolyNeXtError(f"{source} is not YAML: {' '.join(str(error).split())}") from error
        if not isinstance(values, dict):
            raise PolyNeXtError(f"{source} has no fields: give a config.yaml that a run wrote.")
        return validate(kind, values, source)


def read_config(path: Path, kind: type[AnyConfig]) -> AnyConfig:
    """The config in a YAML file that a run wrote."""
    if not path.is_file():
        raise PolyNeXtError(f"there is no file {path}: give a config.yaml that a run wrote, or its folder to --resume.")
    with reading(f"{path} cannot be read: give a config.yaml that a run wrote."):
        return from_yaml(path.read_text(encoding="utf-8"), str(path), kind)


class Loader(yaml.SafeLoader):
    """Reads 1e-3 as a number, as YAML 1.2 does. Refuses aliases, with which a few lines can stand for gigabytes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("a config has no aliases (*NAME)")
        return super().compose_node(parent, index)


FLOAT: Any = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")
Loader.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+0123456789"))
