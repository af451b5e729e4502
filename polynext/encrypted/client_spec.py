"""The client spec of a network: all that a client needs to make keys, encrypt and decrypt, and no weights."""

import hashlib
import json
import math
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from polynext.arrays import Array
from polynext.encrypted.runtime.cost import CostEstimate
from polynext.encrypted.runtime.layout import Layout, same_slots
from polynext.encrypted.runtime.parameters import Parameters
from polynext.encrypted.runtime.program import Program
from polynext.encrypted.runtime.program_file import as_json
from polynext.encrypted.spec_limits import check_layout, check_parameters, check_table
from polynext.errors import PolyNeXtError
from polynext.preprocessing import Preprocessing

FORMAT, VERSION = "polynext-client-spec", 7

# Clients refuse logits this many times as large as the largest of the examples. The modulus has room for 16 times the
# largest, and values beyond it overflow. Overflow escapes detection with probability 4^-classes.
LOGIT_MARGIN = 4.0


@dataclass(frozen=True, eq=False)
class ClientSpec:
    """The backend and its parameters, the rotation steps, the slots of pixels and classes, the preprocessing of images,
    and the cost estimate. `library` is the server's encryption library and its version."""

    backend: str
    library: str
    parameters: Parameters
    rotations: tuple[int, ...]
    image_shape: tuple[int, ...]
    image_layout: Layout
    result_layout: Layout
    preprocessing: Preprocessing
    classes: tuple[str, ...]
    cost: CostEstimate

    def describes(self, program: Program) -> bool:
        """Whether the parameters and layouts are those of this program."""
        described = (self.parameters.slots, self.parameters.depth, self.rotations)
        return (
            described == (program.slots, program.depth, program.rotations)
            and same_slots(self.image_layout, program.layouts[0])
            and np.array_equal(self.image_layout.order, program.layouts[0].order)  # type: ignore[arg-type]
            and same_slots(self.result_layout, program.layouts[-1])
        )

    @property
    def images(self) -> int:
        """The number of images in one ciphertext."""
        return self.image_layout.images

    @property
    def largest_logit(self) -> float:
        """The limit for logits. A larger one may be the result of an overflow."""
        return LOGIT_MARGIN * self.cost.largest_logit

    def ciphertexts(self, images: int) -> int:
        """The number of ciphertexts for this many images."""
        return -(-images // self.images)

    def pack(self, images: Array) -> Array:
        """Put at most `images` normalised images into slots. Missing images are zero."""
        flat = np.zeros((self.images, int(np.prod(self.image_shape))))
        flat[: len(images)] = np.asarray(images).reshape(len(images), -1)
        return self.image_layout.pack(flat)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of everything that keys and ciphertexts depend on."""
        table = self.to_json()
        del table["library"], table["cost"], table["classes"]
        return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "version": VERSION, **json.loads(json.dumps(self, default=as_json))}

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.to_json()))

    @classmethod
    def load(cls, path: Path) -> "ClientSpec":
        if not path.is_file():
            raise PolyNeXtError(
                f"there is no client spec {path}: `polynext encrypted prepare` on the server writes it."
            )
        try:
            return cls.from_json(json.loads(path.read_text()))
        except ValueError as error:
            raise PolyNeXtError(
                f"{path} is not a client spec of this version ({error}): get it from the server again."
            ) from error

    @classmethod
    def from_json(cls, table: Any) -> "ClientSpec":
        """The inverse of `to_json`. Other fields are ignored. Raises ValueError for anything beyond the limits."""
        try:
            if (table["format"], table["version"]) != (FORMAT, VERSION):
                raise ValueError(f"version {str(table['version'])[:20]}")
            check_table(table)
            given = {field.name: table[field.name] for field in fields(cls)}
            made: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
            made["parameters"] = parameters = Parameters.from_json(table["parameters"])
            made["preprocessing"] = Preprocessing.from_json(table["preprocessing"])
            made["cost"] = CostEstimate(**table["cost"])
            check_parameters(parameters, made["rotations"])
            shapes = {"image_layout": math.prod(made["image_shape"]), "result_layout": len(made["classes"])}
            for name, entries in shapes.items():
                made[name] = Layout.from_json(table[name])
                check_layout(made[name], parameters, entries)
            if made["image_layout"].images != made["result_layout"].images:
                raise ValueError("its layouts have different numbers of images")
            if made["image_shape"] != made["preprocessing"].input_size:
                raise ValueError("its preprocessing makes images of another shape")
            return cls(**made)
        except (KeyError, TypeError, RecursionError, AttributeError) as error:
            raise ValueError(str(error)[:200]) from error
