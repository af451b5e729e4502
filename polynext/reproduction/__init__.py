"""The paper's tables again, from whatever data and weights there are.

`tables.py` says what each table takes, `experiments.py` runs it, `report.py` puts what was found beside the paper's.
"""

from polynext.extras import require

require("train")

from polynext.reproduction.experiments import Experiment
from polynext.reproduction.report import reproduce
from polynext.reproduction.tables import TABLES, Cell, Setup

__all__ = ["TABLES", "Cell", "Experiment", "Setup", "reproduce"]
