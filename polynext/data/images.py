"""Image files."""

from pathlib import Path
from typing import BinaryIO

from PIL import Image, ImageOps, UnidentifiedImageError

from polynext.errors import PolyNeXtError

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".webp", ".tif", ".tiff"}
UNREADABLE = (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError)


def read_image(path: Path) -> Image.Image:
    """A data set's image as RGB, just as it is stored."""
    try:
        with Image.open(path) as file:
            return to_rgb(file)
    except UNREADABLE as error:
        raise PolyNeXtError(f"{path} cannot be read as an image: mend or remove it.") from error


def open_picture(source: Path | BinaryIO) -> Image.Image:
    """Somebody's own picture as RGB: upright, and on white where it is transparent."""
    try:
        with Image.open(source) as file:
            picture = ImageOps.exif_transpose(file)
            if "A" in picture.getbands() or "transparency" in picture.info:
                white = Image.new("RGBA", picture.size, "white")
                white.alpha_composite(picture.convert("RGBA"))
                return white.convert("RGB")
            return to_rgb(picture)
    except UNREADABLE as error:
        where = source if isinstance(source, Path) else "what came in"
        raise PolyNeXtError(f"{where} cannot be read as an image ({error}).") from error


def to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16 bits, which a conversion would clip instead of scale
        image = image.point(lambda value: value / 257).convert("L")
    return image.convert("RGB")


def decoded_size(paths: list[Path], sample: int = 64) -> float:
    """Bytes of all images decoded, from the sizes in the headers of some."""
    some = paths[:: max(1, len(paths) // sample)]
    total = 0
    for path in some:
        try:
            with Image.open(path) as file:
                total += 3 * file.width * file.height
        except UNREADABLE as error:
            raise PolyNeXtError(f"{path} cannot be read as an image: mend or remove it.") from error
    return total * len(paths) / len(some)
