"""From a picture to what a network takes. Pillow and numpy only: a client that encrypts pictures needs no torch.

Training data, evaluation, predictions, exports and encryption all prepare pictures here, so that a network sees the
same numbers wherever it is used.
"""

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from polynext.errors import PolyNeXtError

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".webp", ".tif", ".tiff"}
UNREADABLE = (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError)

Pixels = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """How a picture becomes a network's input; nothing in it is random.

    Attributes:
        size: side of the square images the network gets.
        resize: what the shorter edge is resized to before the crop.
        crop: "centre" cuts the middle out, "squash" gives up the picture's proportions instead.
        interpolation: how it is resized.
        mean: per channel, of pixel values in 0 to 1; one channel is grey, three are RGB.
        std: per channel.
    """

    __pydantic_config__ = {"extra": "forbid", "strict": True}  # noqa: RUF012  (as `schema.Config` has it)

    size: int = 8
    resize: int = 8
    crop: Literal["centre", "squash"] = "centre"
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)

    def __post_init__(self) -> None:
        if not (len(self.mean) == len(self.std) in (1, 3)) or min(self.std) <= 0:
            raise PolyNeXtError(
                f"the mean is {self.mean} and the std {self.std}: give one number of each for grey images or three for "
                "RGB, and no std of 0."
            )
        if not 1 <= self.size <= self.resize:
            raise PolyNeXtError(
                f"images of {self.size} pixels cannot be cropped from {self.resize}: give a size of at least 1 and a "
                "resize that is not smaller."
            )

    @property
    def channels(self) -> int:
        return len(self.mean)

    @property
    def input_size(self) -> tuple[int, int, int]:
        """The shape of what comes out."""
        return self.channels, self.size, self.size

    def __call__(self, picture: Image.Image) -> Pixels:
        """(C, H, W): resized, cropped, normalised."""
        return self.normalise(self.resized(self.coloured(picture)))

    def coloured(self, picture: Image.Image) -> Image.Image:
        """Grey or RGB, whichever the network takes."""
        mode = "L" if self.channels == 1 else "RGB"
        return picture if picture.mode == mode else picture.convert(mode)

    def resized(self, picture: Image.Image) -> Image.Image:
        if self.crop == "squash":
            wanted = (self.resize, self.resize)
        else:
            factor = self.resize / min(picture.size)
            wanted = (max(self.resize, round(picture.width * factor)), max(self.resize, round(picture.height * factor)))
        if picture.size != wanted:
            picture = picture.resize(wanted, self.resampling)
        if picture.size == (self.size, self.size):
            return picture
        left, top = round((picture.width - self.size) / 2), round((picture.height - self.size) / 2)
        return picture.crop((left, top, left + self.size, top + self.size))

    @property
    def resampling(self) -> Image.Resampling:
        return Image.Resampling[self.interpolation.upper()]

    def normalise(self, picture: Image.Image) -> Pixels:
        """Pixel values to (value - mean) / std, channels first."""
        mean, scale = self.in_pixel_values
        values = np.asarray(picture, dtype=np.float32).reshape(picture.height, picture.width, -1)
        return np.ascontiguousarray(((values - mean) * scale).transpose(2, 0, 1))

    @cached_property
    def in_pixel_values(self) -> tuple[Pixels, Pixels]:
        """Mean and one over the standard deviation, of pixel values in 0 to 255."""
        return np.asarray(self.mean, np.float32) * 255, np.float32(1) / (np.asarray(self.std, np.float32) * 255)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Preprocessing":
        return cls(**{**fields, "mean": tuple(fields["mean"]), "std": tuple(fields["std"])})

    @classmethod
    def of_model(cls, config: dict[str, Any]) -> "Preprocessing":
        """What timm's data config of a model (`timm.data.resolve_model_data_config`) says."""
        size, crop, interpolation = config["input_size"][-1], config["crop_mode"], config["interpolation"]
        if crop not in ("center", "squash") or interpolation not in ("bicubic", "bilinear"):
            raise PolyNeXtError(
                f"this model's images are cropped by {crop!r} and resized by {interpolation!r}, and polynext crops by "
                "'center' or 'squash' and resizes by 'bicubic' or 'bilinear': evaluate it with timm."
            )
        return cls(
            size=size,
            resize=int(size / config["crop_pct"] + 1e-6),
            crop="centre" if crop == "center" else "squash",
            interpolation=interpolation,
            mean=tuple(config["mean"]),
            std=tuple(config["std"]),
        )


def read_image(source: Path | BinaryIO, name: str = "") -> Image.Image:
    """A data set's image as RGB, just as it is stored."""
    try:
        with Image.open(source) as file:
            return to_rgb(file)
    except UNREADABLE as error:
        raise PolyNeXtError(f"{name or source} cannot be read as an image: mend or remove it.") from error


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
