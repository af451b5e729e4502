"""Pictures of segmented images."""

import colorsys

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from polynext.segmentation.data import IGNORED


def palette(classes: int) -> np.ndarray:
    """A colour for each class. Hues advance by the golden ratio, so neighbouring classes look different."""
    hues = [(i * 0.618034) % 1 for i in range(classes)]
    colours = [colorsys.hsv_to_rgb(h, 0.85 - 0.3 * (i % 3) / 2, 1.0 - 0.35 * (i % 2)) for i, h in enumerate(hues)]
    return (255 * np.asarray(colours)).astype(np.uint8)


def draw_overlay(
    image: Image.Image, labels: np.ndarray, classes: tuple[str, ...], strength: float = 0.55
) -> Image.Image:
    """The image coloured by class, with a legend of the classes in it, largest first."""
    colours = palette(len(classes))
    counts = np.bincount(labels[labels != IGNORED], minlength=len(classes))
    present = [int(i) for i in np.argsort(-counts) if counts[i]]
    pixels = np.asarray(image).astype(np.float32)
    counted = labels != IGNORED
    pixels[counted] = (1 - strength) * pixels[counted] + strength * colours[labels[counted]]
    coloured = Image.fromarray(pixels.astype(np.uint8))

    font = ImageFont.load_default(size=13)
    line = 18
    width = 40 + max((int(font.getlength(classes[i])) for i in present), default=0)
    picture = Image.new("RGB", (image.width + width, max(image.height, line * len(present) + 8)), "white")
    picture.paste(coloured)
    pen = ImageDraw.Draw(picture)
    for row, i in enumerate(present):
        top = 6 + row * line
        pen.rectangle((image.width + 8, top, image.width + 20, top + 12), fill=tuple(colours[i].tolist()))
        pen.text((image.width + 28, top - 2), classes[i], fill="black", font=font)
    return picture
