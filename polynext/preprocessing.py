"""From an image to the input of a network, with Pillow and numpy only: a client that encrypts images needs no torch.

Evaluation, predictions, exports and encryption all prepare images here, so that a network gets the same numbers
everywhere.
"""

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from polynext.errors import PolyNeXtError
from polynext.files import reading

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".webp", ".tif", ".tiff"}
FORMATS = ("JPEG", "MPO", "PNG", "PPM", "BMP", "WEBP", "TIFF", "GIF", "AVIF")
LARGEST_PROPORTION = 100  # of the longer edge to the shorter one, which becomes as long as the network's input

# Statistics of the pixels, which networks for these data sets subtract and divide by.
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CIFAR10_MEAN, CIFAR10_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)

# A pixel of at least this value, of 255, is part of a drawing.
INK = 16

Pixels = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """How an image becomes a network's input, without random numbers.

    Attributes:
        size: side of the network's square input, in pixels.
        resize: length of the shorter edge before the crop; for drawings, of the longer edge.
        crop: "centre" crops the centre, "squash" resizes to a square without keeping the proportions. "drawing" is for
            bright lines on black, as MNIST was prepared: the smallest box around the lines is resized, and its centre
            of mass comes to the centre of the input.
        interpolation: interpolation of the resize.
        mean: mean of each channel, for pixel values in 0 to 1; one channel is grey, three are RGB.
        std: standard deviation of each channel.
    """

    __pydantic_config__ = {"extra": "forbid", "strict": True}  # noqa: RUF012  (as `schema.Config` has it)

    size: int = 8
    resize: int = 8
    crop: Literal["centre", "squash", "drawing"] = "centre"
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)

    def __post_init__(self) -> None:
        if not (len(self.mean) == len(self.std) in (1, 3)) or min(self.std) <= 0:
            raise PolyNeXtError(
                f"the mean is {self.mean} and the std {self.std}: give one number of each for grey images or three for "
                "RGB, and a std above 0."
            )
        if self.crop == "drawing":
            if self.channels != 1 or not 1 <= self.resize <= self.size:
                raise PolyNeXtError(
                    f"drawings of {self.resize} pixels with {self.channels} channels do not fit an input of "
                    f"{self.size}: give one channel, and a resize of at least 1 and at most the size."
                )
        elif not 1 <= self.size <= self.resize:
            raise PolyNeXtError(
                f"images of {self.size} pixels cannot be cropped from {self.resize}: give a size of at least 1 and at "
                "most the resize."
            )

    @property
    def channels(self) -> int:
        return len(self.mean)

    @property
    def input_size(self) -> tuple[int, int, int]:
        """The shape of the network's input."""
        return self.channels, self.size, self.size

    def __call__(self, image: Image.Image) -> Pixels:
        """(C, H, W): resized, cropped, normalised."""
        return self.normalise(self.resized(self.coloured(image)))

    def coloured(self, image: Image.Image) -> Image.Image:
        """The image as grey or RGB, as the network needs it."""
        mode = "L" if self.channels == 1 else "RGB"
        if image.mode != mode or "transparency" in image.info:
            image = as_rgb(image)
        return image if image.mode == mode else image.convert(mode)

    def resized(self, image: Image.Image) -> Image.Image:
        if max(image.size) > LARGEST_PROPORTION * min(image.size):
            raise PolyNeXtError(
                f"an image has {image.width}x{image.height} pixels: give one whose longer edge is at most "
                f"{LARGEST_PROPORTION} times the shorter one."
            )
        if self.crop == "drawing":
            return self.centred(image)
        if self.crop == "squash":
            wanted = (self.resize, self.resize)
        else:
            shorter = min(image.size)  # the longer edge is truncated, as in torchvision and timm
            wanted = (self.resize * image.width // shorter, self.resize * image.height // shorter)
        if image.size != wanted:
            image = image.resize(wanted, self.resampling)
        if image.size == (self.size, self.size):
            return image
        left, top = round((image.width - self.size) / 2), round((image.height - self.size) / 2)
        return image.crop((left, top, left + self.size, top + self.size))

    def centred(self, image: Image.Image) -> Image.Image:
        """A drawing, resized to fit its box and moved so that the central pixel contains its centre of mass."""
        made = Image.new("L", (self.size, self.size))
        box = image.point(lambda value: value >= INK and 255).getbbox()
        if box is None:
            return made
        width, height = box[2] - box[0], box[3] - box[1]
        longer = max(width, height)
        wanted = max(1, self.resize * width // longer), max(1, self.resize * height // longer)
        drawing = image.crop(box)
        if drawing.size != wanted:
            drawing = drawing.resize(wanted, self.resampling)
        ink = np.asarray(drawing, dtype=np.int64)
        if not ink.any():  # thin lines may vanish
            return made
        made.paste(drawing, (self.corner(ink.sum(axis=0)), self.corner(ink.sum(axis=1))))
        return made

    def corner(self, ink: NDArray[np.int64]) -> int:
        """Where a drawing begins along an axis, from the sums of its pixels along the other one."""
        mass, moment = int(ink.sum()), int((ink * np.arange(len(ink))).sum())
        centre = (2 * moment + mass) // (2 * mass)
        return min(max(self.size // 2 - centre, 0), self.size - len(ink))

    @property
    def resampling(self) -> Image.Resampling:
        return Image.Resampling[self.interpolation.upper()]

    def normalise(self, image: Image.Image) -> Pixels:
        """Pixel values to (value - mean) / std, channels first."""
        mean, scale = self.in_pixel_values
        values = np.asarray(image, dtype=np.float32).reshape(image.height, image.width, -1)
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
        """The preprocessing in timm's data config of a model (`timm.data.resolve_model_data_config`)."""
        size, crop, interpolation = config["input_size"][-1], config["crop_mode"], config["interpolation"]
        if crop not in ("center", "squash") or interpolation not in ("bicubic", "bilinear"):
            raise PolyNeXtError(
                f"this model has the crop {crop!r} and {interpolation!r} interpolation, and polynext has 'center' and "
                "'squash', 'bicubic' and 'bilinear': evaluate it with timm."
            )
        return cls(
            size=size,
            resize=int(size / config["crop_pct"] + 1e-6),
            crop="centre" if crop == "center" else "squash",
            interpolation=interpolation,
            mean=tuple(config["mean"]),
            std=tuple(config["std"]),
        )


def open_picture(source: Path | BinaryIO, name: str = "") -> Image.Image:
    """An image file as RGB, upright by its EXIF orientation. All of polynext, and its web page, open images this way.

    Args:
        source: the file.
        name: its name in error messages, if it has no path.
    """
    where = name or (source if isinstance(source, Path) else "the input")
    with reading(f"{where} cannot be read as an image: repair or remove it."), opened(source) as file:
        return as_rgb(upright(file), str(where))


def opened(source: Path | BinaryIO) -> Image.Image:
    """Opens an image file without decoding it. Only common formats: others have rarely used decoders."""
    Image.init()
    return Image.open(source, formats=[name for name in FORMATS if name in Image.OPEN])


def upright(image: Image.Image) -> Image.Image:
    """Decodes an image and turns it by its EXIF orientation. That of XMP is ignored, as browsers do."""
    for name in ("xmp", "XML:com.adobe.xmp"):
        image.info.pop(name, None)
    image.load()
    ImageOps.exif_transpose(image, in_place=True)
    return image


def as_rgb(image: Image.Image, name: str = "the image") -> Image.Image:
    """RGB of 8 bits: transparency on white, and of 16 bits the upper 8, as browsers do."""
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        values = np.asarray(image).astype(np.uint16)
        pixels = (values >> 8).astype(np.uint8)
        if "transparency" in image.info:
            pixels[values == image.info["transparency"]] = 255
        return Image.fromarray(pixels).convert("RGB")
    if image.mode in ("I", "F"):
        kind = "32-bit integers" if image.mode == "I" else "floating-point numbers"
        raise PolyNeXtError(f"{name} has {kind} as pixels, of unknown range: save it with 8 or 16 bits.")
    with reading(f"{name} has pixels of the kind {image.mode}: save it as RGB."):
        if "A" in image.getbands() or "transparency" in image.info:
            white = Image.new("RGBA", image.size, "white")
            white.alpha_composite(image.convert("RGBA"))
            image = white
        return image.convert("RGB")
