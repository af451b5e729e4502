"""The paper's tables again, from whatever data and weights there are.

`tables.py` lists them; `networks.py`, `ablations.py` and `settings.py` say what their figures take, `experiments.py`
runs it, and `report.py` puts what was found beside the paper's.
"""

from polynext.extras import require

require("train")

from polynext.experiments.reproduction.cells import Cell, Setup
from polynext.experiments.reproduction.experiments import Experiment, Results
from polynext.experiments.reproduction.report import reproduce
from polynext.experiments.reproduction.tables import TABLES

__all__ = ["TABLES", "Cell", "Experiment", "Results", "Setup", "reproduce"]
