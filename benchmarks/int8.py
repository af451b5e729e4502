"""Networks with int8 weights: size, speed and accuracy beside float32.

    python benchmarks/int8.py --model cpolynext_small --batch 8
    python benchmarks/int8.py --digits

torchao quantises the 1x1 layers, as `nn.Linear` (`polynext.acceleration.linear_form`), weight-only or with dynamic
activations; ONNX Runtime quantises all convolutions of the exported file, calibrated on the images. Without `--digits`,
weights and images are random, and only speed and size are meaningful. Times are medians of turns.
"""

import argparse
import io
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from torch import Tensor, nn

import polynext
from polynext.acceleration import accelerate, linear_form
from polynext.experiments.speed.timing import take_turns
from polynext.export import export, load
from polynext.memory import keep_freed_memory
from polynext.tables import table

Network = Callable[[Tensor], Tensor]


def file_size(model: nn.Module) -> int:
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    return buffer.tell()


def torchao_forms(model: nn.Module) -> Iterator[tuple[str, Network, int]]:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig, quantize_

    for name, config in (("weights", Int8WeightOnlyConfig()), ("dynamic", Int8DynamicActivationInt8WeightConfig())):
        quantised = linear_form(model)
        quantize_(quantised, config)
        yield f"torchao, int8 {name}", quantised, file_size(quantised)


def onnx_forms(
    model: nn.Module, images: Tensor, folder: Path, threads: int, reduce_range: bool
) -> Iterator[tuple[str, Network, int]]:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Batches(CalibrationDataReader):
        def __init__(self) -> None:
            self.batches = iter(images.split(8))

        def get_next(self) -> dict[str, Any] | None:
            batch = next(self.batches, None)
            return None if batch is None else {"images": batch.numpy()}

    plain, prepared, quantised = (folder / f"{name}.onnx" for name in ("plain", "prepared", "int8"))
    export(model, tuple(images.shape[1:]), plain, "onnx")
    yield "ONNX Runtime, float32", load(plain, threads), plain.stat().st_size
    quant_pre_process(str(plain), str(prepared))
    quantize_static(
        str(prepared),
        str(quantised),
        Batches(),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        reduce_range=reduce_range,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        op_types_to_quantize=["Conv"],
    )
    yield "ONNX Runtime, int8 convolutions", load(quantised, threads), quantised.stat().st_size


def timed(network: Network, batch: Tensor) -> float:
    start = time.perf_counter()
    network(batch)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="cpolynext_small")
    parser.add_argument("--digits", action="store_true", help="the shipped digits network, on the test digits")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--reduce-range", action="store_true", help="7-bit weights, for CPUs without VNNI")
    args = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    labels = None
    if args.digits:
        run = polynext.load_run("cpolynext_nano_bn.digits", pretrained=True)
        model, (pixels, labels, _) = run.model, run.images("test", 360)
        images = torch.from_numpy(pixels).float()
    else:
        model = timm.create_model(args.model).eval()
        images = torch.randn(2 * args.batch, *model.pretrained_cfg["input_size"])
    with tempfile.TemporaryDirectory() as folder:
        forms = [("eager, float32", accelerate(model), file_size(model)), *torchao_forms(model)]
        forms += onnx_forms(model, images, Path(folder), args.threads, args.reduce_range)
        batch = images[: args.batch]
        turns = {name: partial(timed, network, batch) for name, network, _ in forms}
        take_turns(turns, rounds=1)  # to warm up
        timings = take_turns(turns, args.rounds)
        rows = []
        for name, network, size in forms:
            rate = args.batch / timings[name].median
            answers = [network(part).argmax(1).numpy() for part in images.split(args.batch)] if args.digits else []
            right = f"{100 * np.mean(np.concatenate(answers) == labels):.1f}" if args.digits else "-"
            rows.append((name, f"{size / 2**20:.2f}", f"{rate:.1f}", right))
    print(f"batch {args.batch}, {args.threads} thread(s), torch {torch.__version__}")
    print(table(("form", "MB", "images/s", "accuracy (%)"), rows, left=(0,)))


if __name__ == "__main__":
    main()
