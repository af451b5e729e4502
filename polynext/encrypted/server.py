"""The side that owns the network: prepares it, and answers requests that it cannot read."""

import multiprocessing
import time
from multiprocessing.queues import SimpleQueue
from pathlib import Path

from polynext.encrypted.client_spec import Offer
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
PROGRAM, OFFER, SAMPLES = "program.npz", "offer.json", "samples"


def save_server(program: Program, offer: Offer, folder: Path) -> None:
    """What a server keeps: the program, with the network's weights, and the offer for clients."""
    folder.mkdir(parents=True, exist_ok=True)
    save_program(program, folder / PROGRAM)
    offer.save(folder / OFFER)


def load_offer(folder: Path) -> Offer:
    """The offer in a server's folder, if that has all it should."""
    for name in (PROGRAM, OFFER):
        if not (folder / name).is_file():
            raise PolyNeXtError(
                f"{folder} has no {name}, which `polynext encrypted prepare` writes: run it, again if it was an "
                "earlier version's."
            )
    return Offer.load(folder / OFFER)


def load_server(folder: Path, offer: Offer) -> Program:
    """The program in a server's folder, if it keeps the offer's promises."""
    program = load_program(folder / PROGRAM)
    if not offer.describes(program):
        raise PolyNeXtError(
            f"{PROGRAM} and {OFFER} in {folder} do not go together: run `polynext encrypted prepare` again."
        )
    return program


class Server:
    """A network with one client's evaluation keys: its diagonals are encoded once and kept."""

    def __init__(self, program: Program, offer: Offer, keys: EvaluationKeys, ring: Ring, key: str = ""):
        self.program, self.offer, self.ring, self.key = program, offer, ring, key
        self.evaluator = ring.evaluator(keys)
        self.encoded = encode_program(program, self.evaluator)

    @classmethod
    def load(cls, folder: Path, keys: Path) -> "Server":
        offer = load_offer(folder)
        header = read_header(keys, "evaluation")
        check_fits(keys, header, offer)
        program = load_server(folder, offer)
        ring = get_backend(offer.backend).ring(offer.parameters)
        names = key_names(offer.rotations)
        with unpacked(keys, ["relinearisation", *names.values()]) as parts:
            rotations = {step: parts[name] for step, name in names.items()}
            loaded = ring.load_evaluation_keys(parts["relinearisation"], rotations)
        return cls(program, offer, loaded, ring, header["key"])

    def answer(self, ciphertext: Ciphertext, processes: int = 1) -> Ciphertext:
        """The encrypted logits of an encrypted image, or of as many images as it holds, by several processes."""
        if processes <= 1:
            return execute(self.program, self.encoded, self.evaluator, ciphertext)
        costs = get_backend(self.offer.backend).costs(self.offer.parameters.ring_degree)
        shared = Shared(self.program, self.encoded, self.evaluator, costs, processes)
        return shared.best().run(ciphertext, self.ring)

    def answer_request(self, request: Path, path: Path, processes: int = 1) -> None:
        """Answers all ciphertexts of a request file into an answer file, several at a time if asked."""
        header = read_header(request, "request")
        check_fits(request, header, self.offer, self.key)
        count = self.offer.ciphertexts(header["images"])
        with unpacked(request, numbered("image", count)) as parts, folder_beside(path) as folder:
            targets = [Path(folder) / name for name in numbered("result", count)]
            self.work(list(zip(parts.values(), targets, strict=True)), processes)
            answered = header_for(self.offer, self.key, images=header["images"])
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
