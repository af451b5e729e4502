"""The paper's ablations. Start with `rows.py`.

`rows.py` lists the ablations, `baselines.py` the networks that they change, `sweep.py` trains both, and `report.py`
compares the results.
"""

from polynext.experiments.ablation.baselines import baselines, costs
from polynext.experiments.ablation.report import Outcome, collect
from polynext.experiments.ablation.rows import ABLATION_TABLES, ROWS, Row
from polynext.experiments.ablation.sweep import AblationSweep

__all__ = ["ABLATION_TABLES", "ROWS", "AblationSweep", "Outcome", "Row", "baselines", "collect", "costs"]
