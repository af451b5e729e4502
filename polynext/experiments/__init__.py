"""Experiments: ablations, speed and memory, the paper's tables, architecture sweeps.

`sweep.py` trains many short runs, each in a folder of its own; the packages say which, and report what came of them.
"""

from polynext.extras import require

require("train")

from polynext.experiments.sweep import Sweep, Trial, run_sweep

__all__ = ["Sweep", "Trial", "run_sweep"]
