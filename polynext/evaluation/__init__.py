"""Accuracy of a classifier on ImageNet and its variants, on corrupted images, and on the data sets for training.

Start with `measure.py`; `sets.py` has the data sets.
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
