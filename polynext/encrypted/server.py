"""The side that owns the network: prepares it, and answers requests that it cannot read."""

import json
import multiprocessing
import time
from dataclasses import asdict
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

from polynext.circuit.files import load_circuit, save_circuit
from polynext.encrypted.ckks import CkksEngine, EvaluationKeys, Ring, SealCiphertext
from polynext.encrypted.execution import EncodedForm, encode_program, execute
from polynext.encrypted.files import check_fits, folder_beside, numbered, read_header, unpacked, write_parts
from polynext.encrypted.offer import Offer
from polynext.encrypted.planner import Packing, Plan
from polynext.encrypted.program import Program
from polynext.errors import PolyNeXtError
from polynext.memory import peak_memory

CIRCUIT, PACKING, OFFER = "circuit.npz", "packing.json", "offer.json"


def save_server(plan: Plan, offer: Offer, folder: Path) -> None:
    """What a server keeps: the network's circuit, with its weights, how it is packed, and the offer for clients."""
    folder.mkdir(parents=True, exist_ok=True)
    save_circuit(plan.circuit, folder / CIRCUIT)
    (folder / PACKING).write_text(json.dumps(asdict(plan.packing)))
    offer.save(folder / OFFER)


class Server:
    """A network with one client's evaluation keys: its diagonals are encoded once and kept."""

    def __init__(self, program: Program, offer: Offer, keys: EvaluationKeys, ring: Ring, key: str = ""):
        self.program, self.offer, self.key = program, offer, key
        self.engine = CkksEngine(ring, keys)
        self.encoded: list[list[EncodedForm]] = encode_program(program, self.engine)

    @classmethod
    def load(cls, folder: Path, keys: Path) -> "Server":
        for name in (CIRCUIT, PACKING, OFFER):
            if not (folder / name).is_file():
                raise PolyNeXtError(f"{folder} has no {name}: `polynext encrypted prepare` makes a server's folder.")
        offer = Offer.load(folder / OFFER)
        header = read_header(keys, "evaluation")
        check_fits(keys, header, offer.fingerprint)
        other_version = PolyNeXtError(
            f"{folder} was prepared by another version of polynext: prepare the network again."
        )
        fields: dict[str, Any] = json.loads((folder / PACKING).read_text())
        try:
            packing = Packing(**{**fields, "spread": tuple(fields["spread"])})
        except (KeyError, TypeError) as error:
            raise other_version from error
        program = packing.program(load_circuit(folder / CIRCUIT), offer.parameters.slots)
        if program.rotations != offer.rotations:
            raise other_version
        ring = Ring(offer.parameters)
        names = {step: f"rotation-{step}" for step in offer.rotations}
        with unpacked(keys, ["relinearisation", *names.values()]) as parts:
            rotations = {step: ring.load("GaloisKeys", parts[name]) for step, name in names.items()}
            loaded = EvaluationKeys(ring.load("RelinKeys", parts["relinearisation"]), rotations)
        return cls(program, offer, loaded, ring, header["key"])

    def answer(self, ciphertext: SealCiphertext) -> SealCiphertext:
        """The encrypted logits of an encrypted image, or of as many images as it holds."""
        return execute(self.program, self.encoded, self.engine, ciphertext)

    def answer_request(self, request: Path, path: Path, processes: int = 1) -> None:
        """Answers all ciphertexts of a request file into an answer file, several at a time if asked."""
        header = read_header(request, "request")
        check_fits(request, header, self.offer.fingerprint, self.key)
        count = self.offer.ciphertexts(header["images"])
        with unpacked(request, numbered("image", count)) as parts, folder_beside(path) as folder:
            targets = [Path(folder) / name for name in numbered("result", count)]
            self.work(list(zip(parts.values(), targets, strict=True)), min(processes, count))
            results = {target.name: self.engine.ring.load("Ciphertext", target) for target in targets}
            write_parts(path, "answer", header, results)

    def work(self, tasks: list[tuple[Path, Path]], processes: int) -> None:
        """SEAL holds Python's lock, so that a second core takes a second process: a fork shares keys and diagonals."""
        if processes <= 1:
            for source, target in tasks:
                self.answer_file(source, target)
            return
        context = multiprocessing.get_context("fork")
        errors = context.SimpleQueue()
        shares = [tasks[i::processes] for i in range(processes)]
        workers = [context.Process(target=self.work_apart, args=(share, errors)) for share in shares]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if not errors.empty():
            raise PolyNeXtError(errors.get())
        if any(worker.exitcode for worker in workers):
            raise PolyNeXtError("a worker process died: give fewer --processes, or more memory.")

    def work_apart(self, tasks: list[tuple[Path, Path]], errors: "SimpleQueue[str]") -> None:
        """What one of several processes does."""
        try:
            self.work(tasks, 1)
        except PolyNeXtError as error:
            errors.put(str(error))

    def answer_file(self, source: Path, target: Path) -> None:
        image = self.engine.ring.load_ciphertext(source, 0, self.engine.parameters.input_scale)
        try:
            result = self.answer(image)
        except (RuntimeError, ValueError) as error:
            raise PolyNeXtError(
                f"{source.name} cannot be computed with ({error}): encrypt the images again, with keys of one keygen."
            ) from error
        result.body.save(str(target))


def serve(folder: Path, keys: Path, requests: list[Path], answers: Path) -> tuple[list[float], int]:
    """Answers requests, and tells the seconds of each and the peak memory of this process."""
    server = Server.load(folder, keys)
    took = []
    for request in requests:
        start = time.perf_counter()
        server.answer_request(request, answers / request.name)
        took.append(time.perf_counter() - start)
    return took, peak_memory()
