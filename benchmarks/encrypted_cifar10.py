"""The predicted cost of encrypted networks for 32x32 colour images, and with --run the measured cost.

    python benchmarks/encrypted_cifar10.py
    python benchmarks/encrypted_cifar10.py --networks 64x4 --run
    python benchmarks/encrypted_cifar10.py --networks 64x3-128x5@16 --clients python --memory 12288 --key-memory 4096

A network's name gives its channels and stacks: 128x4 has 128 channels at 8x8 positions (patches of 4x4 pixels) and four
stacks, 32x4@16 has 32 channels at 16x16 (patches of 2x2), and 32x2-64x2@16 has a second stage of 64 channels at 8x8.
Weights are random, with an orthogonal W_in, and statistics come from smooth random images. The counts equal those of a
trained network. With --run the server answers in its own process on one thread, `--repeats` times, and seconds are its
CPU time. In turn, two threads share the ciphertext, and their speed-up is measured in wall-clock time.
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

from polynext.encrypted import Client, Limits, Plan, Server, make_plan, save_server
from polynext.encrypted.client import EVALUATION
from polynext.encrypted.compiler.prepare import client_spec_for
from polynext.encrypted.runtime.cost import MEBIBYTE
from polynext.memory import peak_memory
from polynext.preprocessing import Preprocessing
from polynext.tables import table

# The server's process imports this file too, and its memory is measured, so torch is imported inside functions.

NETWORKS = ("64x4", "64x5", "64x6", "128x4", "128x5", "32x4@16", "32x6@16", "32x2-64x2@16")


def network(name: str) -> tuple[Any, Any]:
    """A network, and the images of its statistics."""
    import torch

    from polynext.models import FullyPolynomialBlocks, PolyNeXt, PolyNeXtConfig, StageConfig

    shape, _, size = name.partition("@")
    sizes = [tuple(map(int, stage.split("x"))) for stage in shape.split("-")]
    patch = 32 // int(size or 8)
    stages = tuple(StageConfig(width=width, cells=1, stacks=stacks, coarse_kernel=3) for width, stacks in sizes)
    logits = tuple(np.linspace(1, -1, 2 * max(stacks for _, stacks in sizes)))
    config = PolyNeXtConfig(stages=stages, scale_logits=logits, stem_kernel=patch, stem_stride=patch)
    torch.manual_seed(0)
    model = PolyNeXt(config, num_classes=10, img_size=32, blocks=FullyPolynomialBlocks())
    images = torch.nn.functional.interpolate(torch.randn(64, 3, 8, 8), 32, mode="bilinear") + 0.3 * torch.randn(1)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("w_in.weight"):
                torch.nn.init.orthogonal_(parameter)
        for _ in range(30):
            model.train()(images)
    return model.eval(), images.double().numpy()


def serve(folder: Path, repeats: int) -> tuple[list[float], int, list[float]]:
    """Seconds of each answer, the peak memory, and the speed-ups of two threads."""
    server = Server.load(folder / "server", folder / "client" / EVALUATION)
    took, faster = [], []
    for _ in range(repeats):
        server.evaluator.use_threads(1)
        start, began = time.process_time(), time.perf_counter()
        server.answer_request(folder / "request.enc", folder / "answer.enc")
        took.append(time.process_time() - start)
        alone = time.perf_counter() - began
        server.evaluator.use_threads(2)
        began = time.perf_counter()
        server.answer_request(folder / "request.enc", folder / "shared.enc")
        faster.append(alone / (time.perf_counter() - began))
    return took, peak_memory(), faster


def measured(plan: Plan, images: Any, wanted: Any, repeats: int) -> tuple[str, ...]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spec = client_spec_for(plan, Preprocessing(size=32, resize=32), tuple("0123456789"))
        save_server(plan.program, spec, folder / "server")
        client = Client.keygen(spec, folder / "client")
        client.write_request(images[: plan.images], folder / "request.enc")
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            took, memory, faster = pool.submit(serve, folder, repeats).result()
        error = np.abs(client.read_answer(folder / "answer.enc") - wanted[: plan.images]).max() / np.abs(wanted).max()
    seconds = f"{median(took):.1f} ({min(took):.1f}-{max(took):.1f})"
    return seconds, f"{memory / MEBIBYTE:.0f}", f"{error:.0e}", f"{median(faster):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--images", type=int, default=1, help="in one ciphertext")
    parser.add_argument("--clients", choices=("any", "python"), default="any")
    parser.add_argument("--ring-degree", type=int, help="by default the best one")
    parser.add_argument("--memory", type=int, default=8192, help="megabytes")
    parser.add_argument("--key-memory", type=int, default=1536, help="megabytes")
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    from polynext.circuit import lower

    limits = Limits(
        memory=options.memory * MEBIBYTE,
        keys=options.key_memory * MEBIBYTE,
        ring_degrees=(options.ring_degree,) if options.ring_degree else None,
        error=1e-2,
        clients=options.clients,
    )
    rows = []
    for name in options.networks:
        model, images = network(name)
        circuit = lower(model)
        start = time.process_time()
        plan = make_plan(circuit, images, options.images, limits)
        planning = time.process_time() - start
        cost, parameters = plan.cost, plan.parameters
        planned = (
            name,
            f"{parameters.modulus_bits} / {len(parameters.prime_bits)}",
            f"{cost.rotations} / {cost.plaintext_products} / {cost.ciphertext_products}",
            f"{cost.rotation_keys}, {cost.key_bytes / MEBIBYTE:.0f}",
            f"{cost.peak_bytes / MEBIBYTE:.0f}",
            f"{cost.seconds:.1f}",
            f"{cost.seconds_on_two_cores:.1f}",
            f"{cost.error:.0e}",
            f"{planning:.0f}",
        )
        rows.append((*planned, *(measured(plan, images, circuit(images), options.repeats) if options.run else ())))
    header = (
        "network",
        "bits / primes",
        "rot. / plain / ct",
        "keys, MB",
        "memory MB",
        "seconds",
        "on 2 cores",
        "error",
        "planning s",
    )
    print(
        table((*header, *(("measured", "memory", "error", "2 cores faster") if options.run else ())), rows, left=(0,))
    )


if __name__ == "__main__":
    main()
