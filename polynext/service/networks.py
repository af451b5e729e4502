"""The networks of a service: one server folder each, by name."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from polynext.encrypted.client_spec import ClientSpec
from polynext.encrypted.messages import NetworkSummary
from polynext.encrypted.runtime.backends import get_backend
from polynext.encrypted.runtime.backends.protocol import Part, Ring
from polynext.encrypted.server import SAMPLES, load_client_spec
from polynext.errors import PolyNeXtError

CIPHERTEXT = Part("ciphertext")
NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, eq=False)
class ServedNetwork:
    """A server folder and its client spec. The inference process loads the program itself."""

    name: str
    folder: Path
    spec: ClientSpec

    @cached_property
    def ring(self) -> Ring:
        return get_backend(self.spec.backend).ring(self.spec.parameters)

    @cached_property
    def parts(self) -> dict[str, Part]:
        """The parts of evaluation keys for this network, by name."""
        return {part.name: part for part in Part.keys(self.spec.rotations)}

    @property
    def encrypts(self) -> bool:
        return get_backend(self.spec.backend).encrypts

    @cached_property
    def samples(self) -> dict[str, Path]:
        """Sample images, by name."""
        return {path.name: path for path in sorted((self.folder / SAMPLES).glob("*.png")) if NAME.fullmatch(path.name)}

    def summary(self) -> NetworkSummary:
        spec = self.spec
        return NetworkSummary(
            name=self.name,
            fingerprint=spec.fingerprint,
            backend=spec.backend,
            encrypts=self.encrypts,
            works_in_browser=self.ring.browser_parameters(spec.rotations) is not None,
            classes=list(spec.classes),
            image_shape=list(spec.image_shape),
            images=spec.images,
            upload_bytes=sum(map(self.ring.upload_bytes, self.parts.values())),
            seconds=spec.cost.seconds,
        )

    @cached_property
    def description(self) -> dict[str, Any]:
        """The client spec, with derived values for clients that are not written in Python."""
        spec, ring = self.spec, self.ring
        numbers = np.arange(1.0, 1 + spec.images * int(np.prod(spec.image_shape)))
        slots = spec.pack(numbers.reshape(spec.images, *spec.image_shape)).astype(int) - 1
        return {
            **spec.to_json(),
            "name": self.name,
            "fingerprint": spec.fingerprint,
            "images": spec.images,
            "browser_parameters": ring.browser_parameters(spec.rotations),
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


def load_networks(folders: Iterable[Path], allow_unencrypted: bool = False) -> dict[str, ServedNetwork]:
    """Load server folders, each under the folder's name."""
    networks: dict[str, ServedNetwork] = {}
    for folder in folders:
        network = ServedNetwork(folder.resolve().name, folder.resolve(), load_client_spec(folder))
        if not NAME.fullmatch(network.name):
            raise PolyNeXtError(
                f"the folder's name {network.name!r} is not a network name: use letters, digits, '.', '_' and '-'."
            )
        if network.name in networks:
            raise PolyNeXtError(f"two networks have the name {network.name!r}: rename one of the folders.")
        if not (network.encrypts or allow_unencrypted):
            raise PolyNeXtError(
                f"{folder} uses the {network.spec.backend} backend, which does not encrypt: prepare it with another."
            )
        network.ring.require_engine()
        networks[network.name] = network
    if not networks:
        raise PolyNeXtError("there is no network to serve: give folders that `polynext encrypted prepare` wrote.")
    return networks
