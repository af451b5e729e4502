"""Experiments: ablations, architecture sweeps, speed, and the paper's tables. Start with `sweep.py` and `report.py`.

`sweep.py` trains many short runs, `report.py` is the form of all results. The packages define the experiments:
`ablation` and `architectures` are sweeps, `speed` measures networks, and `reproduction` uses all of them for the
paper's tables. The commands are `polynext ablate`, `encrypted design`, `bench` and `reproduce`.
"""

from polynext.extras import require

require("train")

from polynext.experiments.report import Report
from polynext.experiments.sweep import Sweep, Trial, run_sweep

__all__ = ["Report", "Sweep", "Trial", "run_sweep"]
