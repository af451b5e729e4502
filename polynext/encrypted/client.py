"""The side that owns the images: makes keys, encrypts, decrypts."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from polynext.arrays import Array
from polynext.encrypted.client_spec import ClientSpec
from polynext.encrypted.files import check_fits, header_for, key_names, numbered, read_header, unpacked, write_parts
from polynext.encrypted.runtime.backends import get_backend
from polynext.encrypted.runtime.backends.protocol import Ciphertext, SecretKey
from polynext.errors import PolyNeXtError

SECRET, CLIENT_SPEC, EVALUATION = "secret.key", "client_spec.json", "evaluation.keys"


class OutOfRangeError(PolyNeXtError):
    """Images have logits that no image like the examples has. `logits` are all, with nan for those images."""

    def __init__(self, logits: Array, largest: float):
        within = np.abs(logits).max(axis=1) <= largest
        out = np.flatnonzero(~within)
        named = f"image {out[0]} has" if len(out) == 1 else f"images {', '.join(map(str, out))} have"
        super().__init__(
            f"{named} logits up to {np.abs(logits[out]).max():.3g}, and those of images like the ones that the network "
            f"was prepared with stay below {largest:.3g}: leave {'it' if len(out) == 1 else 'them'} out."
        )
        self.logits = np.where(within[:, None], logits, np.nan)


@dataclass(eq=False)
class Client:
    """A secret key and what it was made for. `key` names the key; it says nothing about it.

    An offer of a backend that does not encrypt is refused, unless the images need no protection.
    """

    spec: ClientSpec
    secret: SecretKey
    key: str
    allow_unencrypted: bool = False

    def __post_init__(self) -> None:
        if not (self.allow_unencrypted or get_backend(self.spec.backend).encrypts):
            raise PolyNeXtError(
                f"this offer is of the {self.spec.backend} backend, which encrypts nothing, so that everybody could "
                "read the images: send none, and ask the server for an offer of a backend that encrypts."
            )

    @classmethod
    def keygen(cls, spec: ClientSpec, folder: Path, allow_unencrypted: bool = False) -> "Client":
        """New keys. The folder gets the secret key, which stays there, and the evaluation keys, for the server."""
        if (folder / SECRET).exists():
            raise PolyNeXtError(f"{folder} holds a secret key already: choose another folder, or remove it yourself.")
        ring = get_backend(spec.backend).ring(spec.parameters)
        client = cls(spec, ring.generate_key(), secrets.token_hex(8), allow_unencrypted)
        header = header_for(spec, client.key)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_parts(folder / SECRET, "secret", header, {"secret": client.secret}, mode=0o600)
        spec.save(folder / CLIENT_SPEC)
        keys = client.secret.sendable_keys(spec.rotations)
        rotations = {name: keys.rotations[step] for step, name in key_names(spec.rotations).items()}
        parts = {"relinearisation": keys.relinearisation, **rotations}
        write_parts(folder / EVALUATION, "evaluation", header, parts)
        return client

    @classmethod
    def load(cls, folder: Path, allow_unencrypted: bool = False) -> "Client":
        spec = ClientSpec.load(folder / CLIENT_SPEC)
        header = read_header(folder / SECRET, "secret")
        check_fits(folder / SECRET, header, spec)
        ring = get_backend(spec.backend).ring(spec.parameters)
        with unpacked(folder / SECRET, ["secret"]) as parts:
            return cls(spec, ring.load_key(parts["secret"]), header["key"], allow_unencrypted)

    def encrypt(self, images: Array) -> list[Ciphertext]:
        """Normalised images (n, *image shape), as many to a ciphertext as it holds."""
        images = np.asarray(images, dtype=np.float64)
        if images.shape[1:] != self.spec.image_shape:
            given, wanted = ("x".join(map(str, s)) for s in (images.shape[1:], self.spec.image_shape))
            raise PolyNeXtError(f"the images are {given}, and the network takes {wanted}: resize or convert them.")
        size = self.spec.images
        return [self.secret.encrypt(self.spec.pack(images[i : i + size])) for i in range(0, len(images), size)]

    def decrypt(self, ciphertexts: Sequence[Ciphertext], count: int) -> Array:
        """The logits (count, classes)."""
        unpack = self.spec.result_layout.unpack
        logits = np.concatenate([unpack(self.secret.decrypt(c)) for c in ciphertexts])[:count]
        if not (np.abs(logits) <= self.spec.largest_logit).all():
            raise OutOfRangeError(logits, self.spec.largest_logit)
        return logits

    def write_request(self, images: Array, path: Path) -> None:
        ciphertexts = self.encrypt(images)
        header = header_for(self.spec, self.key, images=len(images))
        names = numbered("image", len(ciphertexts))
        write_parts(path, "request", header, dict(zip(names, ciphertexts, strict=True)))

    def read_answer(self, path: Path) -> Array:
        """The logits in a server's answer."""
        header = read_header(path, "answer")
        check_fits(path, header, self.spec, self.key)
        parameters, images = self.spec.parameters, header["images"]
        with unpacked(path, numbered("result", self.spec.ciphertexts(images))) as parts:
            load = self.secret.ring.load_ciphertext
            results = [load(p, parameters.depth, parameters.result_scale) for p in parts.values()]
        return self.decrypt(results, images)
