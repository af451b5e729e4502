"""What a server tells the world of a network: all a client needs to make keys, encrypt and decrypt, and no weights."""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from polynext.circuit.maps import Array
from polynext.encrypted.packing import Layout
from polynext.encrypted.parameters import Parameters
from polynext.encrypted.planner import Bill, Plan
from polynext.errors import PolyNeXtError
from polynext.preprocessing import Preprocessing

VERSION = 2


@dataclass(frozen=True, eq=False)
class Offer:
    """Parameters, rotation steps, where pixels and classes sit in the slots, how pictures are prepared, the bill."""

    parameters: Parameters
    rotations: tuple[int, ...]
    image_shape: tuple[int, ...]
    image_layout: Layout
    result_layout: Layout
    preprocessing: Preprocessing
    classes: tuple[str, ...]
    bill: Bill

    @classmethod
    def of(cls, plan: Plan, preprocessing: Preprocessing, classes: tuple[str, ...]) -> "Offer":
        program = plan.program
        return cls(
            plan.parameters,
            program.rotations,
            plan.circuit.input.shape,
            program.layouts[0],
            program.layouts[program.output],
            preprocessing,
            tuple(classes),
            plan.bill,
        )

    @property
    def images(self) -> int:
        """How many go into one ciphertext."""
        return self.image_layout.images

    def ciphertexts(self, images: int) -> int:
        """How many so many images take."""
        return -(-images // self.images)

    def pack(self, images: Array) -> Array:
        """Normalised images (at most `images` of them) into slots; missing ones are black."""
        flat = np.zeros((self.images, int(np.prod(self.image_shape))))
        flat[: len(images)] = np.asarray(images).reshape(len(images), -1)
        return self.image_layout.pack(flat)

    @cached_property
    def fingerprint(self) -> str:
        """Of everything that keys and ciphertexts depend on."""
        fields = self.to_json()
        del fields["bill"], fields["classes"]
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        return {
            "format": "polynext-encrypted-offer",
            "version": VERSION,
            "parameters": self.parameters.to_json(),
            "rotations": list(self.rotations),
            "image_shape": list(self.image_shape),
            "image_layout": layout_to_json(self.image_layout),
            "result_layout": layout_to_json(self.result_layout),
            "preprocessing": self.preprocessing.to_json(),
            "classes": list(self.classes),
            "bill": self.bill.to_json(),
        }

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.to_json()))

    @classmethod
    def load(cls, path: Path) -> "Offer":
        if not path.is_file():
            raise PolyNeXtError(f"there is no offer {path}: a server's `polynext encrypted prepare` writes one.")
        try:
            fields = json.loads(path.read_text())
            if (fields["format"], fields["version"]) != ("polynext-encrypted-offer", VERSION):
                raise ValueError(f"version {fields['version']}")
            slots = fields["parameters"]["ring_degree"] // 2
            return cls(
                Parameters.from_json(fields["parameters"]),
                tuple(fields["rotations"]),
                tuple(fields["image_shape"]),
                layout_from_json(fields["image_layout"], slots),
                layout_from_json(fields["result_layout"], slots),
                Preprocessing.from_json(fields["preprocessing"]),
                tuple(fields["classes"]),
                Bill(**fields["bill"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise PolyNeXtError(f"{path} is no offer that this version reads ({error}): get it again.") from error


def layout_to_json(layout: Layout) -> dict[str, Any]:
    return {"codes": layout.codes.tolist(), "groups": layout.groups, "block": layout.block}


def layout_from_json(fields: dict[str, Any], slots: int) -> Layout:
    return Layout(np.array(fields["codes"], dtype=np.int64), slots, (), fields["groups"], fields["block"])
