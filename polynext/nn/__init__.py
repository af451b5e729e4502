"""The operators of the paper. Each works on its own and maps (B, C, H, W) to (B, C, H, W).

Start with `polymlp.py`, which mixes channels. `polyconv.py` and `polyattention.py` mix positions; `scale.py`, `skip.py`
and `norm.py` keep deep networks of them stable.
"""

from polynext.extras import require

require("models")

from polynext.nn.classifier import PolyHead, PooledClassifier
from polynext.nn.conv import DepthwiseConv2d, PointwiseConv2d, init_kaiming
from polynext.nn.norm import (
    LayerNorm2d,
    NormMaker,
    PositionNorm2d,
    RowSumNorm,
    RunningNorm,
    SyncPositionNorm2d,
    SyncRowSumNorm,
    estimate_statistics,
    freeze_statistics,
)
from polynext.nn.polyattention import PolyAttention
from polynext.nn.polyconv import PolyConv
from polynext.nn.polymlp import PolyMLP
from polynext.nn.scale import LayerScale, LearnableScale, SigmoidScale
from polynext.nn.skip import MultiInputSkip

__all__ = [
    "DepthwiseConv2d",
    "LayerNorm2d",
    "LayerScale",
    "LearnableScale",
    "MultiInputSkip",
    "NormMaker",
    "PointwiseConv2d",
    "PolyAttention",
    "PolyConv",
    "PolyHead",
    "PolyMLP",
    "PooledClassifier",
    "PositionNorm2d",
    "RowSumNorm",
    "RunningNorm",
    "SigmoidScale",
    "SyncPositionNorm2d",
    "SyncRowSumNorm",
    "estimate_statistics",
    "freeze_statistics",
    "init_kaiming",
]
