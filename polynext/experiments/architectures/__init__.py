"""Networks designed for the bill: what each takes encrypted, and what it learns in a short training.

`sweep.py` says what the designs are, how they are trained and planned; `report.py` what came of it. `polynext encrypted
design` runs both.
"""

from polynext.extras import require

require("train")
require("encrypted", "scipy", "tenseal")

from polynext.experiments.architectures.report import Design, collect, pareto
from polynext.experiments.architectures.sweep import DESIGNS, DesignSweep, design_trials

__all__ = ["DESIGNS", "Design", "DesignSweep", "collect", "design_trials", "pareto"]
