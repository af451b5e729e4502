"""The side that owns the images: makes keys, encrypts, decrypts."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from polynext.circuit.maps import Array
from polynext.encrypted.ckks import Ring, SealCiphertext, SecretKeys
from polynext.encrypted.files import check_fits, numbered, read_header, unpacked, write_parts
from polynext.encrypted.offer import Offer
from polynext.errors import PolyNeXtError

SECRET, OFFER, EVALUATION = "secret.key", "offer.json", "evaluation.keys"


@dataclass(eq=False)
class Client:
    """A secret key and what it was made for. `key` names the key; it says nothing about it."""

    offer: Offer
    keys: SecretKeys
    key: str

    @classmethod
    def keygen(cls, offer: Offer, folder: Path) -> "Client":
        """New keys. The folder gets the secret key, which stays there, and the evaluation keys, for the server."""
        if (folder / SECRET).exists():
            raise PolyNeXtError(f"{folder} holds a secret key already: choose another folder, or remove it yourself.")
        client = cls(offer, SecretKeys.generate(Ring(offer.parameters)), secrets.token_hex(8))
        header = {"offer": offer.fingerprint, "key": client.key}
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_parts(folder / SECRET, "secret", header, {"secret": client.keys.secret}, mode=0o600)
        offer.save(folder / OFFER)
        evaluation = client.keys.evaluation_keys(offer.rotations)
        rotations = {f"rotation-{step}": keys for step, keys in evaluation.rotations.items()}
        parts = {"relinearisation": evaluation.relinearisation, **rotations}
        write_parts(folder / EVALUATION, "evaluation", header, parts)
        return client

    @classmethod
    def load(cls, folder: Path) -> "Client":
        offer = Offer.load(folder / OFFER)
        header = read_header(folder / SECRET, "secret")
        check_fits(folder / SECRET, header, offer.fingerprint)
        ring = Ring(offer.parameters)
        with unpacked(folder / SECRET, ["secret"]) as parts:
            return cls(offer, SecretKeys(ring, ring.load("SecretKey", parts["secret"])), header["key"])

    def encrypt(self, images: Array) -> list[SealCiphertext]:
        """Normalised images (n, *image shape), as many to a ciphertext as it holds."""
        images = np.asarray(images, dtype=np.float64)
        if images.shape[1:] != self.offer.image_shape:
            given, wanted = ("x".join(map(str, s)) for s in (images.shape[1:], self.offer.image_shape))
            raise PolyNeXtError(f"the images are {given}, and the network takes {wanted}: resize or convert them.")
        size = self.offer.images
        return [self.keys.encrypt(self.offer.pack(images[i : i + size])) for i in range(0, len(images), size)]

    def decrypt(self, ciphertexts: Sequence[SealCiphertext], count: int) -> Array:
        """The logits (count, classes)."""
        found = [self.offer.result_layout.unpack(self.keys.decrypt(c)) for c in ciphertexts]
        logits = np.concatenate(found)[:count]
        largest, reliable = np.abs(logits).max(axis=1), self.offer.parameters.largest_result
        if largest.max() > reliable:
            raise PolyNeXtError(
                f"image {largest.argmax()} has a logit of size {largest.max():.3g}, and this offer's are reliable "
                f"up to {reliable:.3g}: it is unlike the images that the network was prepared with, so leave it out."
            )
        return logits

    def write_request(self, images: Array, path: Path) -> None:
        ciphertexts = self.encrypt(images)
        header = {"offer": self.offer.fingerprint, "key": self.key, "images": len(images)}
        names = numbered("image", len(ciphertexts))
        write_parts(path, "request", header, dict(zip(names, (c.body for c in ciphertexts), strict=True)))

    def read_answer(self, path: Path) -> Array:
        """The logits in a server's answer."""
        header = read_header(path, "answer")
        check_fits(path, header, self.offer.fingerprint, self.key)
        parameters, images = self.offer.parameters, header["images"]
        with unpacked(path, numbered("result", self.offer.ciphertexts(images))) as parts:
            ring = self.keys.ring
            results = [ring.load_ciphertext(p, parameters.depth, parameters.scale) for p in parts.values()]
        return self.decrypt(results, images)
