"""Sliding windows."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from polynext.segmentation.sliding import slide, windows
from polynext.segmentation.upernet import UPerNet


@given(st.integers(1, 300), st.integers(1, 64), st.data())
def test_windows_cover_everything(length: int, window: int, data) -> None:
    stride = data.draw(st.integers(1, window))
    seen = np.zeros(length, dtype=int)
    for piece in windows(length, window, stride):
        assert piece.stop - piece.start == min(window, length)
        seen[piece] += 1
    assert seen.min() >= 1


def test_one_window_is_the_whole_image() -> None:
    model = UPerNet("cpolynext_tiny", 4, width=8).eval()
    image = torch.randn(1, 3, 64, 80)
    with torch.no_grad():
        torch.testing.assert_close(slide(model, image, 96, 64), model(image), atol=1e-5, rtol=0)


def test_sliding_averages_what_several_windows_see() -> None:
    """A network that tells each window's mean: where windows overlap, the mean of theirs."""
    image = torch.arange(6.0).reshape(1, 1, 1, 6).repeat(1, 1, 4, 1)

    def mean(x: torch.Tensor) -> torch.Tensor:
        return x.mean() * torch.ones_like(x)

    found = slide(mean, image, 4, 2)[0, 0, 0]
    torch.testing.assert_close(found, torch.tensor([1.5, 1.5, 2.5, 2.5, 3.5, 3.5]))
