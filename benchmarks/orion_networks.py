"""Encrypted inference by Orion (https://github.com/baahl-nyu/orion), with its own networks, on this machine.

    pip install orion-fhe
    python benchmarks/orion_networks.py resnet20 --folder orion
    python benchmarks/orion_networks.py lenet

`resnet20` takes CIFAR-10 images and bootstraps; its parameters are those of Orion's own configs/resnet.yml. `lenet`
takes MNIST images and does not bootstrap. The time does not depend on the weights, which are random here. With
`--folder`, Orion stores keys and encoded weights in files instead of memory, and reads them in each inference. Pin it
to one core for one thread: CPU seconds are printed beside wall-clock seconds.
"""

import argparse
import os
import resource
import time
from pathlib import Path

import orion
import orion.models as models
import torch

NETWORKS = {"resnet20": (models.ResNet20, (1, 3, 32, 32)), "lenet": (models.LeNet, (1, 1, 28, 28))}
PARAMETERS = {
    "resnet20": {
        "ckks_params": {
            "LogN": 16,
            "LogQ": [55] + 10 * [40],
            "LogP": 3 * [61],
            "LogScale": 40,
            "H": 192,
            "RingType": "standard",
        },
        "boot_params": {"LogP": 8 * [61]},
    },
    "lenet": {
        "ckks_params": {
            "LogN": 14,
            "LogQ": [50] + 7 * [40],
            "LogP": [51],
            "LogScale": 40,
            "H": 8192,
            "RingType": "standard",
        }
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("--folder", type=Path, help="keep keys and encoded weights there; it must not exist")
    arguments = parser.parse_args()
    files = {"io_mode": "none", "diags_path": "", "keys_path": ""}
    if arguments.folder:
        arguments.folder.mkdir(parents=True)
        files = {
            "io_mode": "save",
            "diags_path": str(arguments.folder / "weights.h5"),
            "keys_path": str(arguments.folder / "keys.h5"),
        }
    settings = {"margin": 2, "embedding_method": "hybrid", "backend": "lattigo", "fuse_modules": True, "debug": False}
    orion.init_scheme({**PARAMETERS[arguments.network], "orion": settings | files})
    torch.manual_seed(0)
    build, shape = NETWORKS[arguments.network]
    network, image = build(), torch.randn(shape)
    network.eval()
    clear = network(image)
    start = time.perf_counter()
    orion.fit(network, image)
    ciphertext = orion.encrypt(orion.encode(image, orion.compile(network)))
    print(f"compiled in {time.perf_counter() - start:.0f} s")
    network.he()
    start, cpu = time.perf_counter(), time.process_time()
    answer = network(ciphertext)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    error = (answer.decrypt().decode() - clear).abs().max() / clear.abs().max()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{arguments.network}: {seconds:.1f} s, {cpu:.1f} s of CPU on {len(os.sched_getaffinity(0))} cores, ", end="")
    print(f"{memory:.1f} GB, error {error:.2g} of the largest logit")


if __name__ == "__main__":
    main()
