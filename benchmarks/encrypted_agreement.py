"""Compares a network's encrypted predictions with its predictions in the clear, on many test images.

    python benchmarks/encrypted_agreement.py cifar10 --images 200
    python benchmarks/encrypted_agreement.py cifar10 --images 50 --clients python --memory 1536
    python benchmarks/encrypted_agreement.py runs/mine --out agreement

The server answers one ciphertext after another in its own process on one core, or several in parallel. Keys, requests
and answers stay in `--out`, so that an interrupted run resumes. Seconds are the server's CPU time on one thread, and
elapsed time on several. Images that the client refuses, because their logits are out of range, are reported separately.
"""

import argparse
import json
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from polynext.encrypted.client import EVALUATION, Client, OutOfRangeError
from polynext.encrypted.runtime.cost import MEBIBYTE
from polynext.encrypted.server import Server, load_client_spec
from polynext.memory import peak_memory

# The server's process imports this file too, and its memory is measured, so torch is imported inside functions.

MOST_IMAGES = 10_000


def answer(folder: Path, starts: list[int], threads: int = 1) -> int:
    """Answers the remaining requests and returns the peak memory."""
    server = Server.load(folder / "server", folder / "client" / EVALUATION, threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    for start in starts:
        began = clock()
        server.answer_request(folder / f"{start}.request.enc", folder / f"{start}.answer.enc")
        took = clock() - began
        (folder / f"{start}.json").write_text(json.dumps({"seconds": took, "threads": threads}))
        print(f"images from {start} on: {took:.1f} s", flush=True)
    return peak_memory()


def read(client: Client, path: Path) -> np.ndarray:
    """The logits of an answer, nan for refused images."""
    try:
        return client.read_answer(path)
    except OutOfRangeError as error:
        return error.logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", nargs="?", default="cifar10")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--packed", type=int, default=1, help="images in a ciphertext")
    parser.add_argument("--clients", choices=("any", "python"), help="by default as the network was trained for")
    parser.add_argument("--memory", type=int, help="megabytes; by default as the network was trained for")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--report", action="store_true", help="only report the answers so far")
    parser.add_argument("--out", type=Path, default=Path("agreement"))
    options = parser.parse_args()
    import torch

    from polynext.encrypted.compiler.prepare import limits_of, prepare
    from polynext.runs import load_run

    folder, run = options.out, load_run(options.network)
    if not (folder / "client").is_dir():
        limits = limits_of(run)
        limits = replace(limits, clients=options.clients or limits.clients)
        limits = replace(limits, memory=options.memory * MEBIBYTE if options.memory else limits.memory)
        prepare(run, images=options.packed, limits=limits).save(folder / "server")
        Client.keygen(load_client_spec(folder / "server"), folder / "client")
    client = Client.load(folder / "client")
    everything = run.images("test", MOST_IMAGES)  # fewer would be others, and `--images` may grow when a run resumes
    images, labels = (each[: options.images] for each in everything[:2])
    starts = list(range(0, len(images), client.spec.images))
    left = [start for start in starts if not (folder / f"{start}.json").is_file()]
    if options.report:
        starts = [start for start in starts if start not in left]
        chosen = [start + i for start in starts for i in range(client.spec.images) if start + i < len(images)]
        images, labels, left = images[chosen], labels[chosen], []
    for start in left:
        client.write_request(images[start : start + client.spec.images], folder / f"{start}.request.enc")
    shares = [left[i :: options.processes] for i in range(options.processes)]
    with ProcessPoolExecutor(options.processes, multiprocessing.get_context("spawn")) as pool:
        memory = max(pool.map(partial(answer, folder, threads=options.threads), shares)) if left else 0

    encrypted = np.concatenate([read(client, folder / f"{start}.answer.enc") for start in starts])
    with torch.no_grad():
        clear = run.model.double()(torch.from_numpy(images)).numpy()
    measured = [json.loads((folder / f"{start}.json").read_text()) for start in starts]
    answered = ~np.isnan(encrypted).any(axis=1)
    limit = client.spec.largest_logit
    beyond = np.abs(clear).max(axis=1) > limit
    print(f"{answered.sum()} of {len(images)} images answered; beyond {limit:.1f} in the clear: {beyond.sum()}")
    print(f"wrongly refused or wrongly answered: {(answered == beyond).sum()}")
    correct = clear.argmax(axis=1) == labels
    print(f"accuracy on all images in the clear: {100 * correct.mean():.1f}%")
    encrypted, clear, labels = encrypted[answered], clear[answered], labels[answered]
    same = int((encrypted.argmax(axis=1) == clear.argmax(axis=1)).sum())
    errors = np.abs(encrypted - clear).max(axis=1) / np.abs(clear).max()
    cost = client.spec.cost
    print(f"answered images with the same prediction as in the clear: {same} of {len(clear)}")
    for what, logits in (("in the clear", clear), ("encrypted", encrypted)):
        print(f"accuracy on answered images, {what}: {100 * (logits.argmax(axis=1) == labels).mean():.1f}%")
    print(
        f"logits off by at most {errors.max():.1e} of the largest, {np.median(errors):.1e} in the median, "
        f"{cost.error:.1e} predicted"
    )
    predicted = {1: cost.seconds, 2: cost.seconds_on_two_cores}
    for threads in sorted({each["threads"] for each in measured}):
        seconds = [each["seconds"] for each in measured if each["threads"] == threads]
        print(
            f"{median(seconds):.1f} s a ciphertext of {client.spec.images} on {threads} threads (median of "
            f"{len(seconds)}, {min(seconds):.1f} to {max(seconds):.1f}), {predicted.get(threads)} predicted"
        )
    if memory:
        print(f"{memory / MEBIBYTE:.0f} MB of memory, {cost.peak_bytes / MEBIBYTE:.0f} predicted")


if __name__ == "__main__":
    main()
