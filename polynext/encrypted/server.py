"""The side that owns the network: prepares it, and answers requests that it cannot read."""

import multiprocessing
import time
from multiprocessing.queues import SimpleQueue
from pathlib import Path

from polynext.encrypted.client_spec import ClientSpec
from polynext.encrypted.files import (
    check_fits,
    folder_beside,
    header_for,
    key_names,
    numbered,
    read_header,
    unpacked,
    write_parts,
)
from polynext.encrypted.runtime.backends import get_backend
from polynext.encrypted.runtime.backends.protocol import Ciphertext, EvaluationKeys, Ring
from polynext.encrypted.runtime.execution import encode_program, execute
from polynext.encrypted.runtime.program import Program
from polynext.encrypted.runtime.program_file import load_program, save_program
from polynext.encrypted.runtime.sharing import Shared
from polynext.errors import PolyNeXtError
from polynext.memory import peak_memory

# Samples are pictures that everybody may see, to try the network with; a folder need not have them.
PROGRAM, CLIENT_SPEC, SAMPLES = "program.npz", "client_spec.json", "samples"


def save_server(program: Program, spec: ClientSpec, folder: Path) -> None:
    """What a server keeps: the program, with the network's weights, and the offer for clients."""
    folder.mkdir(parents=True, exist_ok=True)
    save_program(program, folder / PROGRAM)
    spec.save(folder / CLIENT_SPEC)


def load_client_spec(folder: Path) -> ClientSpec:
    """The offer in a server's folder, if that has all it should."""
    for name in (PROGRAM, CLIENT_SPEC):
        if not (folder / name).is_file():
            raise PolyNeXtError(
                f"{folder} has no {name}, which `polynext encrypted prepare` writes: run it, again if it was an "
                "earlier version's."
            )
    return ClientSpec.load(folder / CLIENT_SPEC)


def load_server(folder: Path, spec: ClientSpec) -> Program:
    """The program in a server's folder, if it keeps the offer's promises."""
    program = load_program(folder / PROGRAM)
    if not spec.describes(program):
        raise PolyNeXtError(
            f"{PROGRAM} and {CLIENT_SPEC} in {folder} do not go together: run `polynext encrypted prepare` again."
        )
    return program


class Server:
    """A network with one client's evaluation keys: its diagonals are encoded once and kept."""

    def __init__(self, program: Program, spec: ClientSpec, keys: EvaluationKeys, ring: Ring, key: str = ""):
        self.program, self.spec, self.ring, self.key = program, spec, ring, key
        self.evaluator = ring.evaluator(keys)
        self.encoded = encode_program(program, self.evaluator)

    @classmethod
    def load(cls, folder: Path, keys: Path) -> "Server":
        spec = load_client_spec(folder)
        header = read_header(keys, "evaluation")
        check_fits(keys, header, spec)
        program = load_server(folder, spec)
        ring = get_backend(spec.backend).ring(spec.parameters)
        names = key_names(spec.rotations)
        with unpacked(keys, ["relinearisation", *names.values()]) as parts:
            rotations = {step: parts[name] for step, name in names.items()}
            loaded = ring.load_evaluation_keys(parts["relinearisation"], rotations)
        return cls(program, spec, loaded, ring, header["key"])

    def answer(self, ciphertext: Ciphertext, processes: int = 1) -> Ciphertext:
        """The encrypted logits of an encrypted image, or of as many images as it holds, by several processes."""
        if processes <= 1:
            return execute(self.program, self.encoded, self.evaluator, ciphertext)
        costs = get_backend(self.spec.backend).costs(self.spec.parameters.ring_degree)
        shared = Shared(self.program, self.encoded, self.evaluator, costs, processes)
        return shared.best().run(ciphertext, self.ring)

    def answer_request(self, request: Path, path: Path, processes: int = 1) -> None:
        """Answers all ciphertexts of a request file into an answer file, several at a time if asked."""
        header = read_header(request, "request")
        check_fits(request, header, self.spec, self.key)
        count = self.spec.ciphertexts(header["images"])
        with unpacked(request, numbered("image", count)) as parts, folder_beside(path) as folder:
            targets = [Path(folder) / name for name in numbered("result", count)]
            self.work(list(zip(parts.values(), targets, strict=True)), processes)
            answered = header_for(self.spec, self.key, images=header["images"])
            write_parts(path, "answer", answered, {target.name: target for target in targets})

    def work(self, tasks: list[tuple[Path, Path]], processes: int) -> None:
        """A library may hold Python's lock: a second core takes a second process, a fork with the same keys. Several
        ciphertexts are worked on at a time; where there are more processes than ciphertexts, they share one."""
        apart = min(processes, len(tasks))
        if apart <= 1:
            for source, target in tasks:
                self.answer_file(source, target, processes)
            return
        context = multiprocessing.get_context("fork")
        errors = context.SimpleQueue()
        shares = [(tasks[i::apart], len(range(i, processes, apart))) for i in range(apart)]
        workers = [context.Process(target=self.work_apart, args=(*share, errors)) for share in shares]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if not errors.empty():
            raise PolyNeXtError(errors.get())
        if any(worker.exitcode for worker in workers):
            raise PolyNeXtError("a worker process died: give fewer --processes, or more memory.")

    def work_apart(self, tasks: list[tuple[Path, Path]], processes: int, errors: "SimpleQueue[str]") -> None:
        """What one of several processes does, and those that it shares its ciphertexts with."""
        try:
            for source, target in tasks:
                self.answer_file(source, target, processes)
        except PolyNeXtError as error:
            errors.put(str(error))

    def answer_file(self, source: Path, target: Path, processes: int) -> None:
        image = self.ring.load_ciphertext(source, 0, self.ring.parameters.input_scale)
        try:
            result = self.answer(image, processes)
        except (RuntimeError, ValueError) as error:
            raise PolyNeXtError(
                f"{source.name} cannot be computed with ({error}): encrypt the images again, with keys of one keygen."
            ) from error
        result.save(str(target))


def serve(folder: Path, keys: Path, requests: list[Path], answers: Path) -> tuple[list[float], int]:
    """Answers requests, and tells the seconds of each and the peak memory of this process."""
    server = Server.load(folder, keys)
    took = []
    for request in requests:
        start = time.perf_counter()
        server.answer_request(request, answers / request.name)
        took.append(time.perf_counter() - start)
    return took, peak_memory()
