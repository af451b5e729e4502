"""How often a network is right: on ImageNet and its relatives, corrupted images, and the sets to train on.

Start with `measure.py`; `sets.py` says what there is to evaluate on.
"""

from polynext.evaluation.corruptions import CORRUPTIONS, corrupt
from polynext.evaluation.measure import evaluate
from polynext.evaluation.scores import Scores, score
from polynext.evaluation.sets import ALL_NAMES, EvaluationSet, open_corrupted, open_set

__all__ = [
    "ALL_NAMES",
    "CORRUPTIONS",
    "EvaluationSet",
    "Scores",
    "corrupt",
    "evaluate",
    "open_corrupted",
    "open_set",
    "score",
]
