"""Pictures of segmented images."""

import numpy as np
from PIL import Image

from polynext.segmentation.data import IGNORED
from polynext.segmentation.overlay import draw_overlay, palette


def test_overlay_names_what_it_shows() -> None:
    labels = np.zeros((60, 80), np.uint8)
    labels[:, 40:] = 2
    labels[:5] = IGNORED
    image = Image.new("RGB", (80, 60), "white")
    picture = np.asarray(draw_overlay(image, labels, ("one", "two", "three"), strength=1.0))
    colours = palette(3)
    assert (picture[30, 10] == colours[0]).all()
    assert (picture[30, 70] == colours[2]).all()
    assert (picture[2, 10] == 255).all()
    assert not (picture == colours[1]).all(axis=2).any()
    assert len({tuple(c) for c in palette(150)}) == 150
