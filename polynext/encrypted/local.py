"""A server and its clients in one process, to try a prepared network without files or HTTP.

The two sides exchange only what they would send: evaluation keys and ciphertexts. The server has no secret key.
"""

import secrets
from dataclasses import dataclass

from polynext.encrypted.client import Client
from polynext.encrypted.client_spec import ClientSpec
from polynext.encrypted.remote import Images, Prediction, prepare_images
from polynext.encrypted.runtime.backends import get_backend
from polynext.encrypted.runtime.program import Program
from polynext.encrypted.server import Server
from polynext.threads import cores


@dataclass(frozen=True, eq=False)
class LocalServer:
    """A prepared network that answers clients in this process."""

    program: Program
    spec: ClientSpec

    def client(self, allow_unencrypted: bool = False) -> "LocalClient":
        """A new client with keys of its own. `allow_unencrypted` accepts a backend that does not encrypt, for tests."""
        ring = get_backend(self.spec.backend).ring(self.spec.parameters)
        client = Client(self.spec, ring.generate_key(), secrets.token_hex(8), allow_unencrypted)
        evaluator = ring.evaluator(client.secret.evaluation_keys(self.spec.rotations), cores())
        return LocalClient(client, Server(self.program, self.spec, evaluator, ring, client.key))


@dataclass(frozen=True, eq=False)
class LocalClient:
    """A client, and the server with this client's evaluation keys."""

    client: Client
    server: Server

    def predict(self, images: Images) -> Prediction:
        """Classify image files, PIL images, or an array (n, *image shape) of normalised images."""
        prepared = prepare_images(images, self.client.spec.preprocessing)
        answers = [self.server.answer(ciphertext) for ciphertext in self.client.encrypt(prepared)]
        logits = self.client.decrypt(answers, len(prepared))
        return Prediction(logits, tuple(self.client.spec.classes[i] for i in logits.argmax(axis=1)))
