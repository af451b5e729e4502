"""The paper's tables, reproduced from the data and weights that are available. Start with `tables.py`.

`tables.py` lists the tables and writes them. `networks.py`, `ablations.py` and `hyperparameters.py` list their figures;
`calls.py` has the functions that measure them, and `experiments.py` runs those and stores their results.
"""

from polynext.experiments.reproduction.entries import Entry
from polynext.experiments.reproduction.experiments import Experiment, Results
from polynext.experiments.reproduction.setup import Setup
from polynext.experiments.reproduction.tables import PAPER_TABLES, reproduce

__all__ = ["PAPER_TABLES", "Entry", "Experiment", "Results", "Setup", "reproduce"]
