"""Intersection over union."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polynext.distributed import Processes
from polynext.segmentation.data import IGNORED
from polynext.segmentation.scores import score

ALONE = Processes(0, 1, torch.device("cpu"))


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**31))
def test_miou_is_what_numpy_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    classes = int(rng.integers(2, 6))
    pairs = []
    for _ in range(3):
        wanted = rng.integers(0, classes, (5, 7))
        wanted[rng.random((5, 7)) < 0.3] = IGNORED
        pairs.append((rng.integers(0, classes, (5, 7)), wanted))
    found = score([(torch.tensor(p), torch.tensor(w)) for p, w in pairs], classes, ALONE)
    predicted, wanted = (np.concatenate([pair[i].ravel() for pair in pairs]) for i in (0, 1))
    predicted, wanted = predicted[wanted != IGNORED], wanted[wanted != IGNORED]
    if not len(wanted):
        return
    ious = []
    for c in range(classes):
        union = ((predicted == c) | (wanted == c)).sum()
        ious.append(100 * ((predicted == c) & (wanted == c)).sum() / union if union else np.nan)
    np.testing.assert_allclose(found.iou, ious)
    assert found.miou == pytest.approx(np.nanmean(ious))
    assert found.accuracy == pytest.approx(100 * (predicted == wanted).mean())
    assert found.images == 3
