"""Training speed beside an eager channels-first loop over the same network.

    python benchmarks/training.py --threads 2

The rival is the same network in channels-first memory with LayerNorm written out as mean and variance over the channel
axis, 1x1 convolutions as convolutions, and PyTorch's own backward of the dilated convolutions. Both take turns, step
after step, so that what else the machine does falls on both alike; medians are printed.
"""

import argparse
import statistics
import time
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polynext.memory import keep_freed_memory
from polynext.models.network import PolyNeXt, PolyNeXtConfig
from polynext.models.polynext import LOWRES
from polynext.nn import DepthwiseConv2d, LayerNorm2d, PointwiseConv2d


class WrittenOutLayerNorm(nn.Module):
    def __init__(self, norm: LayerNorm2d):
        super().__init__()
        self.weight, self.eps = norm.weight, norm.eps

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(dim=1, keepdim=True)
        var = (x - mean).square().mean(dim=1, keepdim=True)
        return self.weight[:, None, None] * (x - mean) / (var + self.eps).sqrt()


def plain_conv(module: nn.Conv2d) -> nn.Conv2d:
    conv = nn.Conv2d(
        module.in_channels, module.out_channels, module.kernel_size, module.stride, module.padding, module.dilation,
        module.groups, bias=False,
    )  # fmt: skip
    conv.weight = module.weight
    return conv


def channels_first(module: nn.Module) -> nn.Module:
    """Replaces our norms and convolutions in place by the plain ones."""
    for name, child in module.named_children():
        if isinstance(child, LayerNorm2d):
            setattr(module, name, WrittenOutLayerNorm(child))
        elif isinstance(child, PointwiseConv2d | DepthwiseConv2d):
            setattr(module, name, plain_conv(child))
        else:
            channels_first(child)
    return module


class ChannelsFirst(PolyNeXt):
    def forward_streams(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.stem(x)
        return x, x


def narrow(config: PolyNeXtConfig, width: int) -> PolyNeXtConfig:
    return replace(config, stages=tuple(replace(s, width=width * 2**i) for i, s in enumerate(config.stages)))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor) -> float:
    start = time.perf_counter()
    F.cross_entropy(model(images), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    keep_freed_memory()
    images, labels = torch.randn(args.batch, 3, 32, 32), torch.randint(10, (args.batch,))
    print(f"batch {args.batch} at 32, float32, {args.threads} thread(s), torch {torch.__version__}")
    print(f"{'network':<28}{'ours':>10}{'plain':>10}  images/s, ratio")
    for name, config in (("cpolynext_lowres", LOWRES), ("the same, 16 channels", narrow(LOWRES, 16))):
        torch.manual_seed(0)
        ours = PolyNeXt(config, num_classes=10, img_size=32)
        plain = ChannelsFirst(config, num_classes=10, img_size=32)
        plain.load_state_dict(ours.state_dict())
        plain = channels_first(plain)
        with torch.no_grad():  # the same function, or the comparison is worth nothing
            torch.testing.assert_close(plain(images), ours(images), rtol=1e-3, atol=1e-4)
        seconds: dict[str, list[float]] = {"ours": [], "plain": []}
        optimizers = {m: torch.optim.AdamW(m.parameters(), lr=1e-5, foreach=True) for m in (ours, plain)}
        for _ in range(args.rounds + 1):
            for label, model in (("ours", ours), ("plain", plain)):
                seconds[label].append(step(model, optimizers[model], images, labels))
        rates = {label: args.batch / statistics.median(times[1:]) for label, times in seconds.items()}
        print(
            f"{name:<28}{rates['ours']:>10.1f}{rates['plain']:>10.1f}  {rates['ours'] / rates['plain']:.2f}", flush=True
        )


if __name__ == "__main__":
    main()
