"""Experiments: ablations, architecture sweeps, speed, and the paper's tables. Start with `sweep.py` and `report.py`.

`sweep.py` trains many short runs, `report.py` is the form of all results. The packages define the experiments:
`ablation` and `architectures` are sweeps, `speed` measures networks, and `reproduction` uses all of them for the
paper's tables. `fitting` chooses and trains a network for encrypted inference within a budget. The commands are
`polynext ablate`, `bench`, `reproduce`, `encrypted design` and `encrypted fit`.
"""

import lazy_loader

from polynext.extras import require

require("train")

# Settings of experiments need no torch, so that `--help` of their commands is fast.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
