"""The client: it owns the images, makes the keys, encrypts and decrypts."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from polynext.arrays import Array
from polynext.encrypted.client_spec import ClientSpec
from polynext.encrypted.files import check_fits, header_for, numbered, read_header, unpacked, write_parts
from polynext.encrypted.key_folder import CLIENT_SPEC, EVALUATION, SECRET, locked, new_keys
from polynext.encrypted.runtime.backends import get_backend
from polynext.encrypted.runtime.backends.protocol import Ciphertext, Part, SecretKey
from polynext.errors import PolyNeXtError


class OutOfRangeError(PolyNeXtError):
    """The logits of some images are too large to be correct. `logits` has all rows, with nan for these images."""

    def __init__(self, logits: Array, largest: float):
        within = np.abs(logits).max(axis=1) <= largest
        out = np.flatnonzero(~within)
        images = f"image {out[0]} has" if len(out) == 1 else f"images {', '.join(map(str, out))} have"
        super().__init__(
            f"{images} logits up to {np.abs(logits[out]).max():.3g}, above the limit of {largest:.3g}: too unlike the "
            f"images that the network was prepared with. Leave {'it' if len(out) == 1 else 'them'} out."
        )
        self.logits = np.where(within[:, None], logits, np.nan)


def require_encryption(spec: ClientSpec, allow_unencrypted: bool) -> None:
    """Raises PolyNeXtError if the backend of a client spec does not encrypt, unless that is allowed."""
    if not (allow_unencrypted or get_backend(spec.backend).encrypts):
        raise PolyNeXtError(
            f"this client spec uses the {spec.backend} backend, which does not encrypt: everybody could read your "
            "images. Ask the server for a backend that encrypts."
        )


@dataclass(eq=False)
class Client:
    """A secret key and the client spec that it was made for. `key` is a random name for it.

    A backend that does not encrypt is refused unless `allow_unencrypted` is set.
    """

    spec: ClientSpec
    secret: SecretKey
    key: str
    allow_unencrypted: bool = False

    def __post_init__(self) -> None:
        require_encryption(self.spec, self.allow_unencrypted)

    @classmethod
    def keygen(cls, spec: ClientSpec, folder: Path, allow_unencrypted: bool = False) -> "Client":
        """Make new keys. The secret key stays in the folder; the evaluation keys are for the server.

        An interrupted `keygen` leaves no keys, and can be repeated.
        """
        require_encryption(spec, allow_unencrypted)
        with locked(folder):
            if (folder / SECRET).exists():
                raise PolyNeXtError(f"{folder} already has a secret key: choose another folder, or delete the key.")
            return cls.make(spec, folder, allow_unencrypted)

    @classmethod
    def load_or_keygen(cls, spec: ClientSpec, folder: Path, allow_unencrypted: bool = False) -> "Client":
        """Load the keys in a folder, or make them. Several processes may do this at the same time."""
        require_encryption(spec, allow_unencrypted)
        with locked(folder):
            if (folder / SECRET).exists():
                return cls.load(folder, allow_unencrypted)
            return cls.make(spec, folder, allow_unencrypted)

    @classmethod
    def make(cls, spec: ClientSpec, folder: Path, allow_unencrypted: bool) -> "Client":
        """Make new keys in a folder whose lock the caller holds."""
        ring = get_backend(spec.backend).ring(spec.parameters)
        client = cls(spec, ring.generate_key(), secrets.token_hex(8), allow_unencrypted)
        header = header_for(spec, client.key)
        keys = client.secret.sendable_keys(spec.rotations)
        relinearisation, *rotations = Part.keys(spec.rotations)
        parts = {relinearisation.name: keys.relinearisation, **{p.name: keys.rotations[p.step] for p in rotations}}
        with new_keys(folder) as new:
            write_parts(new / SECRET, "secret", header, {"secret": client.secret}, mode=0o600)
            write_parts(new / EVALUATION, "evaluation", header, parts)
            spec.save(new / CLIENT_SPEC)
        return client

    @classmethod
    def load(cls, folder: Path, allow_unencrypted: bool = False) -> "Client":
        """Load the keys that `keygen` saved in a folder."""
        spec = ClientSpec.load(folder / CLIENT_SPEC)
        header = read_header(folder / SECRET, "secret")
        check_fits(folder / SECRET, header, spec)
        if (folder / EVALUATION).exists():  # it may have been moved to the server
            check_fits(folder / EVALUATION, read_header(folder / EVALUATION, "evaluation"), spec, header["key"])
        ring = get_backend(spec.backend).ring(spec.parameters)
        with unpacked(folder / SECRET, ["secret"]) as parts:
            return cls(spec, ring.load_key(parts["secret"]), header["key"], allow_unencrypted)

    def encrypt(self, images: Array) -> list[Ciphertext]:
        """Encrypt normalised images (n, *image shape), `spec.images` per ciphertext."""
        images = np.asarray(images, dtype=np.float64)
        if images.shape[1:] != self.spec.image_shape:
            given, expected = ("x".join(map(str, s)) for s in (images.shape[1:], self.spec.image_shape))
            raise PolyNeXtError(f"the images are {given}, and the network takes {expected}: resize or convert them.")
        if not np.isfinite(images).all():
            raise PolyNeXtError("the images have values that are not finite numbers: normalise them.")
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
        """Encrypt images into a request file for the server."""
        ciphertexts = self.encrypt(images)
        header = header_for(self.spec, self.key, images=len(images))
        names = numbered("image", len(ciphertexts))
        write_parts(path, "request", header, dict(zip(names, ciphertexts, strict=True)))

    def read_answer(self, path: Path) -> Array:
        """Decrypt the logits in the server's answer file."""
        header = read_header(path, "answer")
        check_fits(path, header, self.spec, self.key)
        parameters, images = self.spec.parameters, header["images"]
        with unpacked(path, numbered("result", self.spec.ciphertexts(images))) as parts:
            load = self.secret.ring.load_ciphertext
            results = [load(p, parameters.depth, parameters.result_scale) for p in parts.values()]
        return self.decrypt(results, images)
