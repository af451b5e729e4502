"""Test vectors of opening and preprocessing images, for clients that are not written in Python.

The page's own tests read the same file. `python -m tests.service.test_vectors` writes it.
"""

import base64
import io
import json
import shutil
import struct
import subprocess
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from polynext.preprocessing import Preprocessing, open_picture
from tests.service import browser

WEB = Path(__file__).parents[2] / "web"
FILE = WEB / "test" / "vectors.json"
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


def picture(width: int, height: int, lines: bool = False) -> Image.Image:
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


def encoded(image: Image.Image, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, **options)
    return file.getvalue()


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def deep_png(values: np.ndarray, colour_type: int) -> bytes:
    """A PNG file of 16 bits, which Pillow writes in grey only."""
    height, width = values.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    header = struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, 0)
    chunks = {b"IHDR": header, b"IDAT": zlib.compress(rows), b"IEND": b""}
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks.items()
    )


def picture_files() -> dict[str, bytes]:
    """Files of every format, orientation and kind of pixels that browsers open too."""
    generator = np.random.default_rng(0)
    deep = generator.integers(0, 65536, (5, 7, 4))
    clear = Image.fromarray((deep >> 8).astype(np.uint8))
    colour, grey = picture(7, 5), picture(7, 5).convert("L")
    palette, smooth = colour.quantize(32), picture(24, 16).resize((12, 8))
    return {
        "colour.png": encoded(colour, format="PNG"),
        "grey.png": encoded(grey, format="PNG"),
        "bits.png": encoded(grey.convert("1"), format="PNG"),
        "alpha.png": encoded(clear, format="PNG"),
        "grey-alpha.png": encoded(clear.convert("LA"), format="PNG"),
        "palette.png": encoded(palette, format="PNG"),
        "palette-transparent.png": encoded(palette, format="PNG", transparency=palette.getpixel((0, 0))),
        "palette-alpha.png": encoded(clear.quantize(16), format="PNG"),
        "colour-transparent.png": encoded(colour, format="PNG", transparency=colour.getpixel((0, 0))),
        "deep-grey.png": deep_png(deep[:, :, 0], 0),
        "deep-colour.png": deep_png(deep[:, :, :3], 2),
        "deep-alpha.png": deep_png(deep, 6),
        "turned-6.png": encoded(colour, format="PNG", exif=turned(6)),
        **{f"turned-{o}.jpg": encoded(smooth, format="JPEG", exif=turned(o)) for o in (2, 3, 4, 5, 6, 7, 8)},
        **{f"turned-{o}.webp": encoded(colour, format="WEBP", lossless=True, exif=turned(o)) for o in range(1, 9)},
        "turned-lossy.webp": encoded(smooth, format="WEBP", exif=turned(8)),
        "alpha.webp": encoded(clear, format="WEBP", lossless=True, exact=True),
        "grey.jpg": encoded(smooth.convert("L"), format="JPEG"),
        "progressive.jpg": encoded(smooth, format="JPEG", progressive=True),
        "inks.jpg": encoded(smooth.convert("CMYK"), format="JPEG"),
        "transparent.gif": encoded(palette, format="GIF", transparency=palette.getpixel((0, 0))),
        "colour.bmp": encoded(colour, format="BMP"),
    }


def picture_vector(name: str, data: bytes) -> dict[str, Any]:
    opened = open_picture(io.BytesIO(data))
    return {
        "name": name,
        "file": base64.b64encode(data).decode(),
        "width": opened.width,
        "height": opened.height,
        "pixels": base64.b64encode(opened.tobytes()).decode(),
    }


def stored(kind: str) -> list[dict[str, Any]]:
    return json.loads(FILE.read_text())[kind]


@pytest.mark.parametrize("name", CASES)
def test_preprocessing_gives_the_vectors(name: str) -> None:
    assert vector(name) in stored("preprocessing")


@pytest.mark.parametrize("expected", stored("pictures"), ids=lambda expected: expected["name"])
def test_opening_gives_the_vectors(expected: dict[str, Any]) -> None:
    assert picture_vector(expected["name"], base64.b64decode(expected["file"])) == expected


def test_pictures_have_the_right_colours() -> None:
    """Independently of how files are opened."""
    pixels = {one["name"]: base64.b64decode(one["pixels"]) for one in stored("pictures")}
    upright, clear = picture(7, 5).tobytes(), np.random.default_rng(0).integers(0, 65536, (5, 7, 4))
    assert pixels["colour.png"] == pixels["colour.bmp"] == pixels["turned-1.webp"] == upright
    assert pixels["turned-3.webp"] == picture(7, 5).transpose(Image.Transpose.ROTATE_180).tobytes()
    assert pixels["turned-6.webp"] == pixels["turned-6.png"]
    assert pixels["turned-6.png"] == picture(7, 5).transpose(Image.Transpose.ROTATE_270).tobytes()
    assert pixels["deep-colour.png"] == (clear[:, :, :3] >> 8).astype(np.uint8).tobytes()
    values, share = np.split(clear >> 8, [3], axis=2)
    on_white = np.round((values * share + 255 * (255 - share)) / 255).astype(np.uint8)
    assert pixels["alpha.png"] == pixels["alpha.webp"] == pixels["deep-alpha.png"] == on_white.tobytes()


needs_node = pytest.mark.skipif(not (WEB / "node_modules").is_dir(), reason="no web/node_modules: make page")


@pytest.fixture(scope="module")
def compiled() -> Path:
    """The page's modules as JavaScript, after their own tests have passed."""
    npm = shutil.which("npm")
    assert npm is not None
    result = subprocess.run([npm, "test"], cwd=WEB, capture_output=True, text=True, check=False)
    assert result.returncode == 0 and f"# pass {len(CASES)}" in result.stdout, result.stdout + result.stderr
    return WEB / "node_modules" / ".test"


@needs_node
def test_the_page_gives_the_same_vectors(compiled: Path) -> None:
    assert (compiled / "src" / "preprocessing.js").is_file()


OPEN = """async (files) => {
    const { openPicture } = await import('/src/pictures.js')
    return await Promise.all(files.map(async ({ name, file }) => {
        const bytes = Uint8Array.from(atob(file), (character) => character.charCodeAt())
        const { width, height, data } = await openPicture(new Blob([bytes]))
        return { name, file, width, height, pixels: btoa(String.fromCharCode(...data)) }
    }))
}"""


@needs_node
@pytest.mark.skipif(browser.missing() is not None, reason=str(browser.missing()))
def test_a_browser_opens_the_same_pictures(compiled: Path) -> None:
    def answer(route: Any) -> None:
        path = compiled / route.request.url.removeprefix("http://page.test/")
        if path.is_file():
            route.fulfill(path=path, content_type="text/javascript")
        else:
            route.fulfill(body="", content_type="text/html")

    with browser.browser() as context:
        page = context.new_page()
        page.route("http://page.test/**", answer)
        page.goto("http://page.test/")
        opened = page.evaluate(OPEN, stored("pictures"))
    assert opened == stored("pictures")


if __name__ == "__main__":
    vectors = {
        "preprocessing": [vector(name) for name in CASES],
        "pictures": [picture_vector(name, data) for name, data in picture_files().items()],
    }
    FILE.write_text(json.dumps(vectors, indent=1) + "\n")
