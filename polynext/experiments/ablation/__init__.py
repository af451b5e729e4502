"""The paper's ablations as runnable experiments.

`rows.py` has every row, `sweep.py` how they are trained, `report.py` what came of it; the networks they change are in
`polynext.models.variants`, and `polynext.models.dropin` puts the polynomial modules into networks of others.
"""

from polynext.extras import require

require("train")

from polynext.experiments.ablation.baselines import baselines, costs
from polynext.experiments.ablation.report import Outcome, collect
from polynext.experiments.ablation.rows import ROWS, TABLES, Row
from polynext.experiments.ablation.sweep import AblationSweep, all_trials

__all__ = [
    "ROWS",
    "TABLES",
    "AblationSweep",
    "Outcome",
    "Row",
    "all_trials",
    "baselines",
    "collect",
    "costs",
]
