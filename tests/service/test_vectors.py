"""Test vectors of the preprocessing, for clients that are not written in Python.

The page's own test reads the same file. `python -m tests.service.test_vectors` writes it.
"""

import base64
import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from polynext.preprocessing import Preprocessing

FILE = Path(__file__).parents[2] / "web" / "test" / "vectors.json"
DIGITS = Preprocessing()
COLOUR = Preprocessing(size=32, resize=32, mean=(0.4914, 0.4822, 0.4465), std=(0.247, 0.2435, 0.2616))
SQUASHED = Preprocessing(size=12, resize=14, crop="squash", interpolation="bilinear", mean=(0.1307,), std=(0.3081,))
MNIST = Preprocessing(size=28, resize=20, crop="drawing", mean=(0.1307,), std=(0.3081,))
CASES = {
    "a drawing becomes eight by eight": (DIGITS, (64, 64)),
    "eight by eight stays as it is": (DIGITS, (8, 8)),
    "a wide picture loses its sides": (DIGITS, (31, 19)),
    "an odd margin is rounded to even": (Preprocessing(size=4, resize=7), (30, 21)),
    "the longer edge is truncated": (Preprocessing(size=4, resize=7), (29, 19)),
    "a tiny picture is enlarged": (DIGITS, (3, 5)),
    "colour": (COLOUR, (45, 60)),
    "colour as it is": (COLOUR, (32, 32)),
    "squashed, bilinear, and cropped": (SQUASHED, (40, 25)),
    "a drawing is resized and centred": (MNIST, (160, 160)),
    "a wide drawing": (MNIST, (57, 23)),
    "a small drawing is enlarged": (MNIST, (6, 13)),
    "an even smaller field": (replace(MNIST, size=9, resize=8, interpolation="bilinear"), (30, 30)),
}


def picture(width: int, height: int, lines: bool) -> Image.Image:
    """Noise with edges, so that every rounding matters; for drawings on black."""
    pixels = np.random.default_rng(width * height).integers(0, 256, size=(height, width, 3), dtype=np.uint8)
    pixels[height // 3 : height // 2] = 255
    pixels[:, width // 2 : width // 2 + 2] = 0
    if lines:  # a triangle, off the centre, with edges of all values on black
        row, column = np.mgrid[:height, :width]
        pixels[(row < height / 5) | (column > 0.8 * width) | (row * width < column * height)] = 0
        pixels[-2:] //= 20
    return Image.fromarray(pixels)


def vector(name: str) -> dict[str, Any]:
    preprocessing, (width, height) = CASES[name]
    given = picture(width, height, lines=preprocessing.crop == "drawing")
    return {
        "name": name,
        "preprocessing": json.loads(json.dumps(preprocessing.to_json())),
        "width": width,
        "height": height,
        "pixels": base64.b64encode(given.tobytes()).decode(),
        "values": base64.b64encode(preprocessing(given).astype("<f4").tobytes()).decode(),
    }


@pytest.mark.parametrize("name", CASES)
def test_preprocessing_gives_the_vectors(name: str) -> None:
    assert vector(name) in json.loads(FILE.read_text())


@pytest.mark.skipif(not (FILE.parents[1] / "node_modules").is_dir(), reason="no web/node_modules: make page")
def test_the_page_gives_the_same_vectors() -> None:
    npm = shutil.which("npm")
    assert npm is not None
    result = subprocess.run([npm, "test"], cwd=FILE.parents[1], capture_output=True, text=True, check=False)
    assert result.returncode == 0 and f"# pass {len(CASES)}" in result.stdout, result.stdout + result.stderr


if __name__ == "__main__":
    FILE.write_text(json.dumps([vector(name) for name in CASES], indent=1) + "\n")
