"""Small networks and random layers that become circuits."""

from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from polynext.circuit.maps import Convolution, Gather, LinearMap, Scale
from polynext.models import FullyPolynomialBlocks, PolyNeXt, PolyNeXtConfig, StageConfig

SIZE = 4  # of the feature maps of `layers`


def with_statistics(model: Any, images: Tensor) -> Any:
    """The model in eval mode, with the normalisation statistics of these images, as after training."""
    model.train()
    with torch.no_grad():
        for _ in range(40):
            model(images)
    return model.eval()


def small_network(stacks: int = 1, width: int = 4, size: int = 4) -> PolyNeXt:
    """A fully polynomial network that is small enough to encrypt in a test."""
    stage = StageConfig(width=width, cells=1, stacks=stacks, coarse_kernel=3)
    config = PolyNeXtConfig(stages=(stage,), scale_logits=(1.0, 0.5, 0.2, 0.1), stem_kernel=3, stem_stride=1)
    model = PolyNeXt(config, in_chans=1, num_classes=3, img_size=size, blocks=FullyPolynomialBlocks())
    return with_statistics(model, torch.randn(64, 1, size, size))


def patch_network(stem_kernel: int = 2) -> PolyNeXt:
    """A network that starts with patches of 8x8 colour images."""
    torch.manual_seed(0)
    stage = StageConfig(width=4, cells=1, stacks=1, coarse_kernel=3)
    config = PolyNeXtConfig(stages=(stage,), scale_logits=(1.0, 0.5), stem_kernel=stem_kernel, stem_stride=2)
    model = PolyNeXt(config, in_chans=3, num_classes=3, img_size=8, blocks=FullyPolynomialBlocks())
    return with_statistics(model, torch.randn(64, 3, 8, 8))


@st.composite
def layers(draw: st.DrawFn) -> tuple[list[LinearMap], int]:
    """Layers of a network on 4x4 feature maps, sometimes with a last one to 2x2, and the number of input channels."""
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    first = channels = draw(st.sampled_from([1, 2, 4]))
    made: list[LinearMap] = []
    for kind in draw(st.lists(st.sampled_from(["mix", "depthwise", "norm", "flip"]), min_size=1, max_size=4)):
        if kind == "mix":
            more = draw(st.sampled_from([2, 4]))
            made.append(Convolution(rng.normal(size=(more, channels, 1, 1)), (SIZE, SIZE)))
            channels = more
        elif kind == "depthwise":
            dilation = draw(st.sampled_from([1, 2]))
            both = (dilation, dilation)
            weight = rng.normal(size=(channels, 1, 3, 3))
            made.append(Convolution(weight, (SIZE, SIZE), padding=both, dilation=both, groups=channels))
        elif kind == "norm":
            made.append(Scale(np.outer(rng.normal(size=channels), rng.normal(size=SIZE * SIZE)).ravel()))
        else:
            entries = np.arange(channels * SIZE * SIZE).reshape(channels, -1)
            made.append(Gather(entries[::-1].ravel(), entries.size))
    if draw(st.booleans()):
        weight = rng.normal(size=(2 * channels, channels, 3, 3))
        made.append(Convolution(weight, (SIZE, SIZE), stride=(2, 2), padding=(1, 1)))
    return made, first
