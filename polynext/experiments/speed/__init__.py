"""Speed and memory of networks side by side, in one run. `candidates.py` says what is run, `timing.py` how."""

from polynext.experiments.speed.candidates import Candidate, Setting
from polynext.experiments.speed.figures import draw
from polynext.experiments.speed.timing import Measurement, Timing, measure

__all__ = ["Candidate", "Measurement", "Setting", "Timing", "draw", "measure"]
