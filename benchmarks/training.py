"""Training speed beside an eager channels-first loop over the same network.

    python benchmarks/training.py --threads 2

The plain network is the same in channels-first memory, with LayerNorm written out as mean and variance over the channel
axis, 1x1 convolutions as convolutions, and PyTorch's own backward of the dilated convolutions. Both take turns, step
after step, so that other load on the machine affects both alike. The output shows medians.
"""

import argparse
import time
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polynext.experiments.speed.timing import take_turns
from polynext.memory import keep_freed_memory
from polynext.models import PolyNeXt, PolyNeXtConfig
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
    """Replaces our norms and convolutions by plain ones, in place."""
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
        with torch.no_grad():  # both must compute the same function
            torch.testing.assert_close(plain(images), ours(images), rtol=1e-3, atol=1e-4)
        turns = {}
        for label, model in (("ours", ours), ("plain", plain)):
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, foreach=True)
            turns[label] = partial(step, model, optimizer, images, labels)
        take_turns(turns, rounds=1)  # to warm up
        rates = {label: args.batch / timing.median for label, timing in take_turns(turns, args.rounds).items()}
        print(
            f"{name:<28}{rates['ours']:>10.1f}{rates['plain']:>10.1f}  {rates['ours'] / rates['plain']:.2f}", flush=True
        )


if __name__ == "__main__":
    main()
