"""Sweep of architectures: estimated encrypted latency against accuracy.

`sweep.py` lists the architectures, trains and plans them; `report.py` compares the results. The command is `polynext
encrypted design`.
"""

from polynext.extras import require

require("encrypted", "scipy", "tenseal")

from polynext.experiments.architectures.report import ArchitectureResult, collect, pareto
from polynext.experiments.architectures.sweep import ARCHITECTURES, ArchitectureSweep

__all__ = ["ARCHITECTURES", "ArchitectureResult", "ArchitectureSweep", "collect", "pareto"]
