"""Speed and memory of networks side by side, in one run. `candidates.py` says what is run, `timing.py` how."""

from polynext.bench.candidates import Candidate, Setting
from polynext.bench.figures import draw
from polynext.bench.timing import Measurement, Timing, measure

__all__ = ["Candidate", "Measurement", "Setting", "Timing", "draw", "measure"]
