"""The side that owns the network: prepares it, and answers requests that it cannot read."""

import json
import multiprocessing
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from polynext.circuit.files import load_circuit, save_circuit
from polynext.encrypted.ckks import CkksEngine, EvaluationKeys, Ring, SealCiphertext
from polynext.encrypted.execution import EncodedForm, encode_program, execute
from polynext.encrypted.files import Parts, check_fits, read_header, write_parts
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
        fields: dict[str, Any] = json.loads((folder / PACKING).read_text())
        packing = Packing(**{**fields, "spread": tuple(fields["spread"])})
        program = packing.program(load_circuit(folder / CIRCUIT), offer.parameters.slots)
        if program.rotations != offer.rotations:
            raise PolyNeXtError(f"{folder} was prepared by another version of polynext: prepare the network again.")
        ring = Ring(offer.parameters)
        with Parts(keys) as parts:
            rotations = {step: ring.load("GaloisKeys", parts[f"rotation-{step}"]) for step in offer.rotations}
            loaded = EvaluationKeys(ring.load("RelinKeys", parts["relinearisation"]), rotations)
        return cls(program, offer, loaded, ring, header["key"])

    def answer(self, ciphertext: SealCiphertext) -> SealCiphertext:
        """The encrypted logits of an encrypted image, or of as many images as it holds."""
        return execute(self.program, self.encoded, self.engine, ciphertext)

    def answer_request(self, request: Path, path: Path, processes: int = 1) -> None:
        """Answers all ciphertexts of a request file into an answer file, several at a time if asked."""
        header = read_header(request, "request")
        check_fits(request, header, self.offer.fingerprint, self.key)
        with Parts(request) as parts, tempfile.TemporaryDirectory() as folder:
            tasks = [(parts[name], Path(folder) / name.replace("image", "result")) for name in parts.names("image-")]
            self.work(tasks, min(processes, len(tasks)))
            ring = self.engine.ring
            results = {target.name: ring.load("Ciphertext", target) for _, target in tasks}
            write_parts(path, "answer", header | {"kind": "answer"}, results)

    def work(self, tasks: list[tuple[Path, Path]], processes: int) -> None:
        """SEAL holds Python's lock, so that a second core takes a second process: a fork shares keys and diagonals."""
        if processes <= 1:
            for source, target in tasks:
                self.answer_file(source, target)
            return
        context = multiprocessing.get_context("fork")
        workers = [context.Process(target=self.work, args=(tasks[i::processes], 1)) for i in range(processes)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if any(worker.exitcode for worker in workers):
            raise PolyNeXtError("a worker process died: give fewer --processes, or more memory.")

    def answer_file(self, source: Path, target: Path) -> None:
        body = self.engine.ring.load("Ciphertext", source)
        scale = self.engine.parameters.input_scale
        self.answer(SealCiphertext(body, 0, scale)).body.save(str(target))


def serve(folder: Path, keys: Path, requests: list[Path], answers: Path) -> tuple[list[float], int]:
    """Answers requests, and tells the seconds of each and the peak memory of this process."""
    server = Server.load(folder, keys)
    took = []
    for request in requests:
        start = time.perf_counter()
        server.answer_request(request, answers / request.name)
        took.append(time.perf_counter() - start)
    return took, peak_memory()
