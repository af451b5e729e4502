"""The fifteen corruptions of ImageNet-C at five severities, for images of any size.

They follow the published definitions (Hendrycks and Dietterich, ICLR 2019) with lengths scaled to the image. Results
are not comparable with the released ImageNet-C.

Each function takes float values in 0 to 1 of shape (H, W, C), a severity from 1 to 5 and a random generator, and
returns the same shape. `corrupt` is for uint8 images.
"""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from polynext.errors import PolyNeXtError
from polynext.extras import require

Pixels = npt.NDArray[np.float64]
Corruption = Callable[[Pixels, int, np.random.Generator], Pixels]

SEVERITIES = (1, 2, 3, 4, 5)


def corrupt(image: npt.NDArray[np.uint8], name: str, severity: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    """Corrupts a uint8 image, (H, W) or (H, W, C), with random numbers from the seed."""
    if name not in CORRUPTIONS or severity not in SEVERITIES:
        raise PolyNeXtError(
            f"there is no corruption {name!r} of severity {severity}: choose a severity from 1 to 5 and one of "
            f"{', '.join(CORRUPTIONS)}."
        )
    generator = np.random.default_rng([seed, severity, list(CORRUPTIONS).index(name)])
    pixels = image.reshape(*image.shape[:2], -1) / 255.0
    result = CORRUPTIONS[name](pixels, severity, generator)
    return np.round(np.clip(result, 0, 1) * 255).astype(np.uint8).reshape(image.shape)


def gaussian_noise(x: Pixels, severity: int, generator: np.random.Generator) -> Pixels:
    return x + generator.normal(scale=(0.08, 0.12, 0.18, 0.26, 0.38)[severity - 1], size=x.shape)


def shot_noise(x: Pixels, severity: int, generator: np.random.Generator) -> Pixels:
    photons = (60, 25, 12, 5, 3)[severity - 1]
    return generator.poisson(np.clip(x, 0, 1) * photons) / photons


def impulse_noise(x: Pixels, severity: int, generator: np.random.Generator) -> Pixels:
    share = (0.03, 0.06, 0.09, 0.17, 0.27)[severity - 1]
    hit = generator.random(x.shape) < share
    return np.where(hit, generator.integers(0, 2, size=x.shape), x)


def defocus_blur(x: Pixels, severity: int, generator: np.random.Generator) -> Pixels:
    radius = length(x, (3, 4, 6, 8, 10)[severity - 1], least=0.7 + 0.15 * severity)
    reach = int(np.ceil(radius)) + 1
    y, z = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    disk = np.clip(radius + 0.5 - np.hypot(y, z), 0, 1)  # the edge fades over one pixel
    return convolve(x, disk)


def glass_blur(x: Pixels, severity: int, generator: np.random.Generator) -> Pixels:
    sigma = length(x, (0.7, 0.9, 1.0, 1.1, 1.5)[severity - 1], least=0.1 + 0.06 * severity)
    distance = length(x, (1, 2, 2, 3, 4)[severity - 1])
    reach = max(1, round(distance))
    rounds = (2, 1, 3, 2, 2)[severity - 1]
    share = 1.0 if distance >= 1 else (0.3, 0.45, 0.6, 0.8, 1.0)[severity - 1]  # below a pixel, move only some pixels
    x = blur(x, sigma).copy()
    height, width = x.shape[:2]
    for _ in range(rounds):  # exchange each pixel with a near one
        dy = generator.integers(-reach, reach + 1, size=(height, width))
        dx = generator.integers(-reach, reach + 1, size=(height, width))
        moves = generator.random((height, width)) < share
        for i in range(height - 1, -1, -1):
            for j in np.flatnonzero(moves[i])[::-1]:
                k, m = min(max(i + dy[i, j], 0), height - 1), min(max(j + dx[i, j], 0), width - 1)
                x[i, j], x[k, m] = x[k, m].copy(), x[i, j].copy()
    return blur(x, sigma)


def motion_blur(x: Pixels, severity: int, generator: np.random.Generator) -> Pixels:
    reach = length(x, (10, 15, 15, 15, 20)[severity - 1], least=1.2 + 0.2 * severity)
    sigma = reach * (3, 5, 8, 12, 15)[severity - 1] / (10, 15, 15, 15, 20)[severity - 1]
    return convolve(x, streak(reach, sigma, generator.uniform(-45, 45)))


def zoom_blur(x: Pixels, severity: int, generator: np.random.Generator) -> Pixels:
    most = (1.11, 1.16, 1.21, 1.26, 1.33)[severity - 1]
    zooms = np.arange(1, most, 0.01 if severity < 3 else 0.02)
    return np.mean([zoomed(x, zoom) for zoom in zooms], axis=0)


def snow(x: Pixels, severity: int, generator: np.random.Generator) -> Pixels:
    mean, spread, zoom, threshold, reach, sigma, keep = (
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    )[severity - 1]
    flakes = zoomed(generator.normal(mean, spread, size=(*x.shape[:2], 1)), zoom)
    flakes = np.where(flakes < threshold, 0, np.clip(flakes, 0, 1))
    flakes = convolve(
        flakes, streak(length(x, reach, least=1), length(x, sigma, least=1), generator.uniform(-135, -45))
    )
    whitened = np.maximum(x, x.mean(axis=2, keepdims=True) * 1.5 + 0.5)
    return keep * x + (1 - keep) * whitened + flakes + flakes[::-1, ::-1]


def frost(x: Pixels, severity: int, generator: np.random.Generator) -> Pixels:
    keep, ice = ((1.0, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))[severity - 1]
    return keep * x + ice * ice_texture(x.shape[:2], generator)


def fog(x: Pixels, severity: int, generator: np.random.Generator) -> Pixels:
    amount, decay = ((1.5, 2.0), (2.0, 2.0), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4))[severity - 1]
    brightest = x.max()
    return (x + amount * cloud(x.shape[:2], decay, generator)) * brightest / (brightest + amount) if brightest else x


def brightness(x: Pixels, severity: int, generator: np.random.Generator) -> Pixels:
    """Raises the value of HSV, which is the largest channel of a pixel, and the other channels in proportion."""
    amount = (0.1, 0.2, 0.3, 0.4, 0.5)[severity - 1]
    value = x.max(axis=2, keepdims=True)
    return np.where(value > 0, x * (np.minimum(value + amount, 1) / np.maximum(value, 1e-6)), amount)


def contrast(x: Pixels, severity: int, generator: np.random.Generator) -> Pixels:
    mean = x.mean(axis=(0, 1), keepdims=True)
    return (x - mean) * (0.4, 0.3, 0.2, 0.1, 0.05)[severity - 1] + mean


def elastic_transform(x: Pixels, severity: int, generator: np.random.Generator) -> Pixels:
    side = min(x.shape[:2])
    amount, smooth = ((0.03, 0.08), (0.045, 0.07), (0.05, 0.05), (0.06, 0.04), (0.08, 0.035))[severity - 1]
    shifts = [
        ndimage().gaussian_filter(generator.uniform(-1, 1, x.shape[:2]), max(smooth * side, 0.6)) for _ in range(2)
    ]
    shifts = [amount * side * s / max(np.abs(s).max(), 1e-9) for s in shifts]
    places = np.mgrid[: x.shape[0], : x.shape[1]] + np.stack(shifts)
    return each_channel(x, lambda c: ndimage().map_coordinates(c, places, order=1, mode="reflect"))


def pixelate(x: Pixels, severity: int, generator: np.random.Generator) -> Pixels:
    share = (0.6, 0.5, 0.4, 0.3, 0.25)[severity - 1]
    small = (max(1, int(x.shape[1] * share)), max(1, int(x.shape[0] * share)))

    def blocks(channel: Pixels) -> Pixels:
        image = Image.fromarray(channel.astype(np.float32)).resize(small, Image.Resampling.BOX)
        return np.asarray(image.resize((x.shape[1], x.shape[0]), Image.Resampling.NEAREST), dtype=np.float64)

    return each_channel(x, blocks)


def jpeg_compression(x: Pixels, severity: int, generator: np.random.Generator) -> Pixels:
    pixels = np.round(np.clip(x, 0, 1) * 255).astype(np.uint8)
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=(25, 18, 15, 10, 7)[severity - 1])
    return np.asarray(Image.open(file), dtype=np.float64).reshape(x.shape) / 255


CORRUPTIONS: dict[str, Corruption] = {
    f.__name__: f
    for f in (
        gaussian_noise, shot_noise, impulse_noise, defocus_blur, glass_blur, motion_blur, zoom_blur, snow, frost, fog,
        brightness, contrast, elastic_transform, pixelate, jpeg_compression,
    )
}  # fmt: skip


def ndimage() -> Any:
    """SciPy's image filters, which only corruptions need."""
    require("train", "scipy")
    from scipy import ndimage

    return ndimage


def length(x: Pixels, at_224: float, least: float = 0.0) -> float:
    """A length in pixels of a 224-pixel image, scaled to this image."""
    return max(at_224 * min(x.shape[:2]) / 224, least)


def each_channel(x: Pixels, change: Callable[[Pixels], Pixels]) -> Pixels:
    return np.stack([change(x[:, :, c]) for c in range(x.shape[2])], axis=2)


def convolve(x: Pixels, kernel: Pixels) -> Pixels:
    return each_channel(x, lambda c: ndimage().convolve(c, kernel / kernel.sum(), mode="nearest"))


def blur(x: Pixels, sigma: float) -> Pixels:
    return each_channel(x, lambda c: ndimage().gaussian_filter(c, sigma, mode="nearest"))


def streak(reach: float, sigma: float, angle: float) -> Pixels:
    """The kernel of a line through the centre that fades to one side."""
    size = int(np.ceil(reach))
    y, x = np.mgrid[-size : size + 1, -size : size + 1]
    along = x * np.cos(np.radians(angle)) + y * np.sin(np.radians(angle))
    across = -x * np.sin(np.radians(angle)) + y * np.cos(np.radians(angle))
    inside = (along >= -0.5) & (along <= reach + 0.5)
    return np.where(inside, np.exp(-0.5 * (along / sigma) ** 2) * np.clip(1 - np.abs(across), 0, 1), 0.0)


def zoomed(x: Pixels, zoom: float) -> Pixels:
    """The centre of the image, enlarged to its size."""
    centre = (np.array(x.shape[:2]) - 1) / 2
    offset = centre - centre / zoom
    return each_channel(
        x, lambda c: ndimage().affine_transform(c, np.full(2, 1 / zoom), offset, order=1, mode="nearest")
    )


def cloud(size: tuple[int, ...], decay: float, generator: np.random.Generator) -> Pixels:
    """Fractal noise in 0 to 1: the amplitude of a frequency f is f^-decay."""
    frequency = np.hypot(np.fft.fftfreq(size[0])[:, None] * size[0], np.fft.fftfreq(size[1]) * size[1])
    spectrum = np.fft.fft2(generator.normal(size=size)) / np.maximum(frequency, 1) ** decay
    noise = np.fft.ifft2(spectrum).real
    return ((noise - noise.min()) / max(np.ptp(noise), 1e-9))[:, :, None]


def ice_texture(size: tuple[int, ...], generator: np.random.Generator) -> Pixels:
    """Bright ridges where two clouds meet, denser towards the border, like ice on a window."""
    ridges = 1 - np.abs(cloud(size, 1.2, generator) - cloud(size, 1.2, generator)) * 2
    y, x = np.mgrid[: size[0], : size[1]]
    border = np.maximum(np.abs(2 * y / max(size[0] - 1, 1) - 1), np.abs(2 * x / max(size[1] - 1, 1) - 1))
    return np.clip(ridges, 0, 1) ** 3 * (0.6 + 0.4 * border[:, :, None])
