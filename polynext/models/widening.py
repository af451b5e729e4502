"""Wider networks with fewer stacks at equal cost: "depth over width" in the paper's Table 4."""

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from polynext.models.blocks import PolyNeXtConfig, StageConfig
from polynext.models.costs import count_macs, count_parameters
from polynext.models.network import PolyNeXt

Cost = Literal["parameters", "macs"]

# Side of the last feature map when MACs are counted, as at 224 pixels. Only the classifier does not scale with it.
LAST_MAP = 7


@functools.cache
def widened(
    architecture: PolyNeXtConfig, in_chans: int, num_classes: int, stacks: int, match: Cost = "parameters"
) -> PolyNeXtConfig:
    """Fewer stacks in each cell and wider stages, with the same number of parameters, or of MACs, within 1%."""
    fewer = tuple(replace(stage, stacks=min(stage.stacks, stacks)) for stage in architecture.stages)
    side = LAST_MAP * architecture.stride

    def cost(stages: Sequence[StageConfig]) -> int:
        of_these = replace(architecture, stages=tuple(stages))
        model = PolyNeXt(of_these, in_chans, num_classes, img_size=side, device="meta")
        return count_parameters(model) if match == "parameters" else count_macs(model, (in_chans, side, side))

    wanted = cost(architecture.stages)

    def wider(factor: float) -> list[StageConfig]:
        return [replace(stage, width=nearest_width(factor * stage.width, stage)) for stage in fewer]

    low, high = 1.0, 4.0
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if cost(wider(middle)) < wanted else (low, middle)
    # Integer widths are too coarse for small networks: the hidden width of the last stage makes up the difference.
    *first, last = wider(low)
    hidden = int(last.width * last.mlp_ratio)  # PolyMLP truncates; adding 0.5 below avoids rounding errors

    def with_hidden(pairs: int) -> list[StageConfig]:
        return [*first, replace(last, mlp_ratio=(hidden + 2 * pairs + 0.5) / last.width)]

    none, one = cost(with_hidden(0)), cost(with_hidden(1))  # costs are linear in the hidden width
    return replace(architecture, stages=tuple(with_hidden(round((wanted - none) / (one - none)))))


def nearest_width(width: float, stage: StageConfig) -> int:
    """The nearest width for which PolyMLP's two branches are equally wide."""
    step = next(w for w in range(1, 65) if (w * stage.mlp_ratio) % 2 == 0)
    return max(step, step * round(width / step))
