"""The networks that a service offers: each a server's folder, by name."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from polynext.encrypted.client_spec import ClientSpec
from polynext.encrypted.runtime.backends import get_backend
from polynext.encrypted.runtime.backends.protocol import Part, Ring
from polynext.encrypted.server import SAMPLES, load_client_spec
from polynext.errors import PolyNeXtError

CIPHERTEXT = Part("ciphertext")
NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, eq=False)
class Network:
    """A server's folder and its offer. The program is left to those who compute."""

    name: str
    folder: Path
    spec: ClientSpec

    @cached_property
    def ring(self) -> Ring:
        return get_backend(self.spec.backend).ring(self.spec.parameters)

    @cached_property
    def parts(self) -> dict[str, Part]:
        """What evaluation keys for this network consist of."""
        return {part.name: part for part in Part.keys(self.spec.rotations)}

    @property
    def encrypts(self) -> bool:
        return get_backend(self.spec.backend).encrypts

    @cached_property
    def samples(self) -> dict[str, Path]:
        """Pictures to try it with, by name."""
        return {path.name: path for path in sorted((self.folder / SAMPLES).glob("*.png")) if NAME.fullmatch(path.name)}

    def summary(self) -> dict[str, Any]:
        spec = self.spec
        return {
            "name": self.name,
            "fingerprint": spec.fingerprint,
            "backend": spec.backend,
            "encrypts": self.encrypts,
            "classes": list(spec.classes),
            "image_shape": list(spec.image_shape),
            "images": spec.images,
            "upload_bytes": sum(self.ring.most_bytes(part) for part in self.parts.values()) // 2,  # seeded ones
            "seconds": spec.cost.seconds,
        }

    @cached_property
    def description(self) -> dict[str, Any]:
        """The offer as clients get it, with what one that is not Python would have to work out."""
        spec, ring = self.spec, self.ring
        numbers = np.arange(1.0, 1 + spec.images * int(np.prod(spec.image_shape)))
        slots = spec.pack(numbers.reshape(spec.images, *spec.image_shape)).astype(int) - 1
        return {
            **spec.to_json(),
            "name": self.name,
            "fingerprint": spec.fingerprint,
            "images": spec.images,
            "seal": self.seal,
            "parts": [
                {
                    "name": part.name,
                    "step": part.step if part.kind == "rotation" else None,
                    "most_bytes": ring.most_bytes(part),
                }
                for part in self.parts.values()
            ],
            "request_most_bytes": ring.most_bytes(CIPHERTEXT),
            "slots": {"image": slots.tolist(), "result": spec.result_layout.codes.tolist()},
            "samples": list(self.samples),
            "largest_logit": spec.largest_logit,
        }

    @property
    def seal(self) -> dict[str, Any] | None:
        if self.spec.backend != "seal":
            return None
        from polynext.encrypted.runtime.backends.seal import galois_element, in_seal_order

        parameters = self.spec.parameters
        return {
            "poly_modulus_degree": parameters.ring_degree,
            "coeff_modulus_bits": in_seal_order(parameters.prime_bits),
            "input_scale": parameters.input_scale,
            "galois_elements": {
                part.name: galois_element(part.step, parameters)
                for part in self.parts.values()
                if part.kind == "rotation"
            },
        }


def load_networks(folders: Iterable[Path], allow_unencrypted: bool = False) -> dict[str, Network]:
    """Networks by the names of their folders."""
    networks: dict[str, Network] = {}
    for folder in folders:
        network = Network(folder.resolve().name, folder.resolve(), load_client_spec(folder))
        if not NAME.fullmatch(network.name):
            raise PolyNeXtError(f"{folder} gives a network its name: rename it to letters, digits, and . _ or -.")
        if network.name in networks:
            raise PolyNeXtError(f"two networks would be called {network.name!r}: rename one of their folders.")
        if not (network.encrypts or allow_unencrypted):
            raise PolyNeXtError(
                f"{folder} is of the {network.spec.backend} backend, which encrypts nothing: prepare it with one that "
                "does."
            )
        networks[network.name] = network
    if not networks:
        raise PolyNeXtError("there is no network to offer: give the folders that `polynext encrypted prepare` wrote.")
    return networks
