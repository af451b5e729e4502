"""The server: it owns the network, and computes on requests that it cannot read."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from polynext.encrypted.client_spec import ClientSpec
from polynext.encrypted.files import (
    check_fits,
    folder_beside,
    header_for,
    numbered,
    read_header,
    unpacked,
    write_parts,
)
from polynext.encrypted.runtime.backends import get_backend
from polynext.encrypted.runtime.backends.protocol import Ciphertext, Evaluator, Part, Ring
from polynext.encrypted.runtime.execution import encode_program, execute
from polynext.encrypted.runtime.program import Program
from polynext.encrypted.runtime.program_file import load_program, save_program
from polynext.errors import PolyNeXtError
from polynext.memory import peak_memory

# Samples are public images to try the network with. They are optional.
PROGRAM, CLIENT_SPEC, SAMPLES = "program.npz", "client_spec.json", "samples"


def save_server(program: Program, spec: ClientSpec, folder: Path) -> None:
    """Save a server folder: the program, which contains the weights, and the client spec."""
    folder.mkdir(parents=True, exist_ok=True)
    save_program(program, folder / PROGRAM)
    spec.save(folder / CLIENT_SPEC)


def load_client_spec(folder: Path) -> ClientSpec:
    """The client spec in a server folder, after checking that the folder is complete."""
    for name in (PROGRAM, CLIENT_SPEC):
        if not (folder / name).is_file():
            raise PolyNeXtError(f"{folder} has no {name}: write it with this version's `polynext encrypted prepare`.")
    return ClientSpec.load(folder / CLIENT_SPEC)


def load_server(folder: Path, spec: ClientSpec) -> Program:
    """The program in a server folder. Raises PolyNeXtError if the client spec does not describe it."""
    program = load_program(folder / PROGRAM)
    if not spec.describes(program):
        raise PolyNeXtError(
            f"{PROGRAM} and {CLIENT_SPEC} in {folder} do not match: run `polynext encrypted prepare` again."
        )
    return program


class Server:
    """A network and an evaluator with one client's keys. The weights are encoded once."""

    def __init__(self, program: Program, spec: ClientSpec, evaluator: Evaluator, ring: Ring, key: str = ""):
        self.program, self.spec, self.ring, self.key = program, spec, ring, key
        self.evaluator = evaluator
        self.encoded = encode_program(program, evaluator)

    @classmethod
    def load(cls, folder: Path, keys: Path, threads: int = 1) -> "Server":
        """Load a server folder and a file of evaluation keys. The engine uses `threads` threads, if it has threads."""
        spec = load_client_spec(folder)
        header = read_header(keys, "evaluation")
        check_fits(keys, header, spec)
        program = load_server(folder, spec)
        ring = get_backend(spec.backend).ring(spec.parameters)
        relinearisation, *rotations = Part.keys(spec.rotations)
        with unpacked(keys, [relinearisation.name, *(part.name for part in rotations)]) as files:
            loaded = ring.load_evaluation_keys(
                files[relinearisation.name], {part.step: files[part.name] for part in rotations}
            )
        return cls(program, spec, ring.evaluator(loaded, threads), ring, header["key"])

    def answer(self, ciphertext: Ciphertext) -> Ciphertext:
        """The encrypted logits of the images in a ciphertext."""
        return execute(self.program, self.encoded, self.evaluator, ciphertext)

    def answer_request(self, request: Path, path: Path) -> None:
        """Compute all ciphertexts of a request file and write an answer file.

        As many ciphertexts are computed at a time as there are threads. Those that have none to compute help the
        others, so that a single ciphertext has all threads.
        """
        header = read_header(request, "request")
        check_fits(request, header, self.spec, self.key)
        count = self.spec.ciphertexts(header["images"])
        with unpacked(request, numbered("image", count)) as parts, folder_beside(path) as folder:
            targets = [Path(folder) / name for name in numbered("result", count)]
            with ThreadPoolExecutor(self.evaluator.threads) as callers:
                list(callers.map(self.answer_file, parts.values(), targets))
            answered = header_for(self.spec, self.key, images=header["images"])
            write_parts(path, "answer", answered, {target.name: target for target in targets})

    def answer_file(self, source: Path, target: Path) -> None:
        image = self.ring.load_ciphertext(source, 0, self.ring.parameters.input_scale)
        try:
            result = self.answer(image)
        except (RuntimeError, ValueError) as error:
            raise PolyNeXtError(
                f"computing on {source.name} failed ({error}): encrypt the images again, with keys of the same keygen."
            ) from error
        result.save(str(target))


def answer_requests(
    folder: Path, keys: Path, requests: list[Path], answers: Path, threads: int = 1
) -> tuple[list[float], int]:
    """Answer requests; returns the seconds of each and the peak memory of this process."""
    server = Server.load(folder, keys, threads)
    took = []
    for request in requests:
        start = time.perf_counter()
        server.answer_request(request, answers / request.name)
        took.append(time.perf_counter() - start)
    return took, peak_memory()
