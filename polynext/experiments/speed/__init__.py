"""Speed and memory of networks, measured side by side. Start with `timing.py`.

`candidates.py` defines what is measured, `timing.py` measures, `paper_table.py` measures the paper's Table S4 and can
resume, `report.py` and `figures.py` show the results. The command is `polynext bench`.
"""

from polynext.experiments.speed.candidates import Candidate, Setting
from polynext.experiments.speed.figures import draw
from polynext.experiments.speed.timing import Measurement, Timing, measure, take_turns

__all__ = ["Candidate", "Measurement", "Setting", "Timing", "draw", "measure", "take_turns"]
