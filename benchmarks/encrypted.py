"""Encrypted inference on 8x8 images: measured seconds, memory and error beside the planner's predictions.

    python benchmarks/encrypted.py

The networks are like cpolynext_nano_bn, with one and two stacks and one and eight images in a ciphertext. Their
statistics come from the digits data set. The server runs in its own process on one thread, `--repeats` times per
configuration, and seconds are its CPU time. Then one thread and two threads answer one and two ciphertexts, measured in
wall-clock time.
"""

import argparse
import multiprocessing
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from polynext.encrypted import Client, Server, make_plan, save_server
from polynext.encrypted.client import EVALUATION
from polynext.encrypted.compiler.prepare import client_spec_for
from polynext.encrypted.runtime.cost import MEBIBYTE
from polynext.memory import peak_memory
from polynext.tables import table

# The server's process imports this file too, and its memory is measured, so torch is imported inside functions.


def network(stacks: int, images: Any) -> Any:
    import torch

    from polynext.models import FullyPolynomialBlocks, PolyNeXt, PolyNeXtConfig, StageConfig

    stage = StageConfig(width=16, cells=1, stacks=stacks, coarse_kernel=3)
    logits = tuple(np.linspace(1, -1, 4))
    config = PolyNeXtConfig(stages=(stage,), scale_logits=logits, stem_kernel=3, stem_stride=1)
    torch.manual_seed(0)
    model = PolyNeXt(config, in_chans=1, num_classes=10, img_size=8, blocks=FullyPolynomialBlocks())
    with torch.no_grad():
        for _ in range(50):
            model.train()(images)
    return model.eval()


def serve(folder: Path, requests: list[Path], repeats: int) -> tuple[list[float], int, list[float]]:
    """Seconds of each answer, the peak memory, and the speed-up of two threads for each request."""
    server = Server.load(folder / "server", folder / "client" / EVALUATION)
    took = [timed(server, requests[0], folder / "answer.enc", 1) for _ in range(repeats + 1)][1:]  # one to warm up
    memory = peak_memory()
    faster = []
    for request in requests:
        turns = [[timed(server, request, folder / "both.enc", n, time.perf_counter) for n in (1, 2)] for _ in took]
        faster.append(median(one / two for one, two in turns))
    return took, memory, faster


def timed(server: Server, request: Path, answer: Path, threads: int, clock: Any = time.process_time) -> float:
    server.evaluator.use_threads(threads)
    start = clock()
    server.answer_request(request, answer)
    return clock() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    from polynext.circuit import lower
    from polynext.data import DataConfig, load_examples

    data = DataConfig()
    digits = load_examples(data, "train")
    images = torch.stack([torch.from_numpy(data.preprocessing(digits.image(i))) for i in range(256)])
    rows = []
    for stacks, packed in ((1, 1), (1, 8), (2, 1), (2, 8)):
        model = network(stacks, images)
        start = time.process_time()
        plan = make_plan(lower(model), images.double().numpy(), packed)
        planning = time.process_time() - start
        cost, parameters = plan.cost, plan.parameters
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            spec = client_spec_for(plan, data.preprocessing, tuple(digits.classes))
            save_server(plan.program, spec, folder / "server")
            client = Client.keygen(spec, folder / "client")
            requests = [folder / "one.enc", folder / "two.enc"]
            chosen = images[: 2 * packed].double().numpy()
            client.write_request(chosen[:packed], requests[0])
            client.write_request(chosen, requests[1])
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                took, memory, faster = pool.submit(serve, folder, requests, repeats).result()
            answers = client.read_answer(folder / "both.enc")
        with torch.no_grad():
            wanted = model.double()(torch.from_numpy(chosen)).numpy()
        model.float()
        seconds = median(took)
        rows.append(
            (
                str(stacks),
                str(packed),
                f"{parameters.modulus_bits} / {len(parameters.prime_bits) - 1}",
                f"{cost.rotations} / {cost.plaintext_products} / {cost.ciphertext_products}",
                f"{cost.rotation_keys * parameters.key_bytes / MEBIBYTE:.0f}",
                f"{seconds:.2f} ({min(took):.2f}-{max(took):.2f})",
                f"{cost.seconds:.2f}",
                f"{memory / MEBIBYTE:.0f}",
                f"{cost.peak_bytes / MEBIBYTE:.0f}",
                f"{np.abs(answers - wanted).max() / np.abs(wanted).max():.0e}",
                f"{cost.error:.0e}",
                *(f"{ratio:.2f}" for ratio in reversed(faster)),
                f"{cost.seconds / cost.seconds_on_two_cores:.2f}",
                f"{planning:.0f}",
            )
        )
    header = ("stacks", "images", "bits / primes", "rot. / plain / ct", "keys MB", "seconds", "predicted")
    more = ("memory MB", "predicted", "error", "predicted", "2 cores", "2 cores for one", "predicted", "planning s")
    print(table((*header, *more), rows, left=()))


if __name__ == "__main__":
    main()
