"""Digits drawn with strokes, as people draw them on the page of the service, for training and for tests.

Each digit has several shapes: a 7 with and without a bar, a 1 with and without serifs, an open and a closed 4. The
proportions of a shape are random. The drawing is then slanted, rotated and bent, and rendered as web/src/pad.ts does.
"""

import math
from collections.abc import Callable, Sequence
from random import Random

import numpy as np
from PIL import Image, ImageDraw

from polynext.data.examples import Examples
from polynext.preprocessing import Preprocessing

Point = tuple[float, float]
Line = list[Point]
Drawing = list[Line]

# The longer side of a rendered drawing, in pixels, and the thickness of the page's lines as a share of it.
SIDE = 80
THICKNESS = 1 / 8
# As MNIST was prepared: 20 pixels long, in a field of 28 with the centre of mass at its centre.
PREPARED = Preprocessing(size=28, resize=20, crop="drawing", mean=(0.1307,), std=(0.3081,))


def arc(x: float, y: float, across: float, down: float, start: float, end: float) -> Line:
    """Part of an ellipse around (x, y). Angles are in degrees, clockwise on the screen, and 0 points to the right."""
    steps = max(2, round(abs(end - start) / 15))
    angles = (math.radians(start + (end - start) * i / steps) for i in range(steps + 1))
    return [(x + across * math.cos(angle), y + down * math.sin(angle)) for angle in angles]


def bent(start: Point, end: Point, bend: float) -> Line:
    """A line whose middle is off by `bend` times its length, to the left of its direction on the screen."""
    (x0, y0), (x1, y1) = start, end
    shares = [i / 8 for i in range(9)]
    offsets = [4 * bend * share * (1 - share) for share in shares]
    return [
        (x0 + (x1 - x0) * share + (y1 - y0) * off, y0 + (y1 - y0) * share - (x1 - x0) * off)
        for share, off in zip(shares, offsets, strict=True)
    ]


def zero(random: Random) -> Drawing:
    start = random.uniform(-150, -30)
    turn = random.choice((-1, 1)) * random.uniform(325, 400)
    return [arc(0.5, 0.5, random.uniform(0.24, 0.48), 0.5, start, start + turn)]


def one(random: Random) -> Drawing:
    stem: Line = bent((0.5, 0.0), (0.5 + random.uniform(-0.04, 0.04), 1.0), random.uniform(-0.04, 0.04))
    shape = random.choice(("plain", "plain", "flag", "flag", "serifs", "serifs", "base"))
    flag = (0.5 - random.uniform(0.08, 0.34), random.uniform(0.08, 0.36))
    if shape in ("flag", "serifs"):
        stem = [*bent(flag, (0.5, 0.0), random.uniform(-0.1, 0.1)), *stem]
    half = random.uniform(0.12, 0.34)
    base: Line = [(0.5 - half * random.uniform(0.7, 1.2), 1.0), (0.5 + half, 1.0 + random.uniform(-0.03, 0.03))]
    return [stem, base] if shape in ("serifs", "base") else [stem]


def two(random: Random) -> Drawing:
    radius, end = random.uniform(0.24, 0.4), random.uniform(10, 60)
    across, foot = random.uniform(0.28, 0.42), random.uniform(0.0, 0.18)
    top = arc(0.48, radius, across, radius, random.uniform(-195, -130), end)
    base = bent((foot, 1.0), (random.uniform(0.8, 1.05), 1.0 + random.uniform(-0.1, 0.04)), random.uniform(-0.08, 0.12))
    shape = random.choice(("curved", "curved", "loop", "angular"))
    if shape == "angular":
        corner = (random.uniform(0.75, 0.95), random.uniform(-0.02, 0.1))
        return [[*bent((0.1, random.uniform(0.0, 0.2)), corner, random.uniform(0.0, 0.12)), (foot, 1.0), *base]]
    down = bent(top[-1], (foot, 1.0), random.uniform(-0.12, 0.02))
    if shape == "loop":
        loop = arc(foot + 0.1, 0.9, random.uniform(0.06, 0.14), random.uniform(0.05, 0.1), 110, 400)
        return [[*top, *bent(top[-1], loop[0], random.uniform(-0.1, 0.0)), *loop, *bent(loop[-1], base[-1], 0.08)]]
    return [[*top, *down, *base]]


def three(random: Random) -> Drawing:
    waist = random.uniform(0.4, 0.54)
    upper, lower = random.uniform(0.22, 0.38), random.uniform(0.28, 0.44)
    inner = random.uniform(0.3, 0.5)
    bottom = arc(inner, (1 + waist) / 2, lower, (1 - waist) / 2, -90, random.uniform(120, 170))
    if random.random() < 0.25:  # a flat top
        corner = (random.uniform(0.6, 0.85), random.uniform(-0.03, 0.05))
        return [[(random.uniform(0.0, 0.2), random.uniform(0.0, 0.06)), corner, *bent(corner, bottom[0], 0.0), *bottom]]
    top = arc(inner, waist / 2, upper, waist / 2, random.uniform(-175, -120), random.uniform(75, 90))
    inset = random.uniform(-0.05, 0.2)
    return [[*top, (inner - inset, waist), *bottom]]


def four(random: Random) -> Drawing:
    bar = random.uniform(0.5, 0.76)
    stem, over = random.uniform(0.55, 0.85), random.uniform(0.05, 0.35)
    ends = bent(
        (stem, random.uniform(-0.08, 0.35)), (stem - random.uniform(-0.05, 0.12), 1.0), random.uniform(-0.03, 0.03)
    )
    shape = random.choice(("open", "open", "square", "closed", "closed", "one line"))
    left = random.uniform(0.0, 0.1)
    if shape == "open":
        top = (random.uniform(0.1, 0.45), random.uniform(-0.05, 0.1))
        return [
            [*bent(top, (left, bar), random.uniform(-0.08, 0.05)), (stem + over, bar + random.uniform(-0.06, 0.06))],
            ends,
        ]
    if shape == "square":
        top = (left + random.uniform(0.0, 0.1), random.uniform(-0.05, 0.2))
        rounded = arc(left + 0.15, bar - 0.12, 0.15, 0.12, 180, 90) if random.random() < 0.5 else [(left, bar)]
        return [[top, *rounded, (stem + random.choice((0.0, over)), bar + random.uniform(-0.05, 0.05))], ends]
    apex = (stem + random.uniform(-0.04, 0.04), 0.0)
    if shape == "closed":
        return [[*bent(apex, (left, bar), random.uniform(-0.05, 0.1)), (stem + over, bar)], [apex, (stem, 1.0)]]
    return [[(stem, bar), (left, bar), *bent((left, bar), apex, random.uniform(-0.1, 0.05)), (stem, 1.0)]]


def five(random: Random) -> Drawing:
    left, shoulder = random.uniform(0.08, 0.25), random.uniform(0.36, 0.5)
    right = random.uniform(0.7, 0.95)
    radius = (1 - shoulder + random.uniform(0.0, 0.1)) / 2
    bowl = arc(
        random.uniform(0.35, 0.5), 1 - radius, random.uniform(0.34, 0.48), radius, random.uniform(-130, -100), 150
    )
    hat: Line = bent((left, 0.0), (right, random.uniform(-0.06, 0.06)), random.uniform(-0.06, 0.06))
    stem: Line = bent((left, 0.0), (left + random.uniform(-0.1, 0.05), shoulder), random.uniform(-0.06, 0.06))
    if random.random() < 0.5:
        gap = random.uniform(-0.06, 0.06)
        return [[*stem, *bowl], [(x + gap, y + gap / 2) for x, y in hat]]
    if random.random() < 0.3:  # an S
        top = arc(0.55, 0.25, random.uniform(0.3, 0.4), 0.25, random.uniform(-50, -20), -190)
        return [[*top, *bowl]]
    return [[*reversed(hat), *stem, *bowl]]


def six(random: Random) -> Drawing:
    radius = random.uniform(0.2, 0.32)
    across, x = random.uniform(0.26, 0.42), 0.45
    top = (random.uniform(0.45, 1.0), random.uniform(-0.02, 0.06))
    side = (x - across, 1 - radius)
    stem = bent(top, side, random.uniform(-0.28, -0.02)) if random.random() < 0.85 else [top, side]
    loop = arc(x, 1 - radius, across, radius, 180, random.uniform(-190, -120) if random.random() < 0.85 else 540)
    return [[*stem, *loop]]


def seven(random: Random) -> Drawing:
    corner = (random.uniform(0.7, 1.0), random.uniform(-0.06, 0.08))
    foot = (random.uniform(0.1, 0.6), 1.0)
    down = bent(corner, foot, random.uniform(-0.14, 0.06))
    hat = bent((random.uniform(0.0, 0.15), random.uniform(-0.04, 0.1)), corner, random.uniform(-0.1, 0.1))
    lines = [[*hat, *down]]
    if random.random() < 0.2:  # a serif
        lines = [[(hat[0][0] + random.uniform(-0.05, 0.03), random.uniform(0.1, 0.25)), *hat, *down]]
    if random.random() < 0.4:  # a bar
        x, y = down[random.choice((3, 4, 4, 5))]
        half, tilt = random.uniform(0.14, 0.3), random.uniform(-0.08, 0.06)
        lines.append([(x - half, y - tilt), (x + half * random.uniform(0.7, 1.2), y + tilt)])
    return lines


def eight(random: Random) -> Drawing:
    waist = random.uniform(0.4, 0.55)
    upper, lower = random.uniform(0.22, 0.36), random.uniform(0.26, 0.42)
    if random.random() < 0.3:  # two circles
        turn = random.choice((-1, 1)) * random.uniform(340, 380)
        start = random.uniform(-120, 120)
        above = arc(0.5, waist / 2, upper, waist / 2, start, start + turn)
        return [above, arc(0.5, (1 + waist) / 2, lower, (1 - waist) / 2, -90, -90 + turn)]
    begin = random.uniform(-70, -10)
    first = arc(0.5, waist / 2, upper, waist / 2, begin, -270 + random.uniform(10, 35))
    second = arc(0.5, (1 + waist) / 2, lower, (1 - waist) / 2, -70, 250)
    last = arc(0.5, waist / 2, upper, waist / 2, random.uniform(40, 60), begin + random.uniform(-30, 10))
    return [[*first, *second, *last]]


def nine(random: Random) -> Drawing:
    radius = random.uniform(0.2, 0.32)
    across, x = random.uniform(0.26, 0.4), 0.5
    right = (x + across, radius)
    loop = arc(x, radius, across, radius, random.uniform(-50, 0), -360)
    if random.random() < 0.3:
        loop = arc(x, radius, across, radius, -180 + random.uniform(-40, 40), 360 - random.uniform(0, 20))
    tail = random.choice(("straight", "straight", "slanted", "curved", "hook"))
    above = (right[0] + random.uniform(-0.03, 0.03), random.uniform(-0.05, radius))
    if tail == "straight":
        return [[*loop, above, (right[0] + random.uniform(-0.06, 0.04), 1.0)]]
    if tail == "slanted":
        return [[*loop, right, *bent(right, (random.uniform(0.3, 0.75), 1.0), random.uniform(-0.04, 0.12))]]
    depth = random.uniform(0.14, 0.3)
    reach = random.uniform(0.25, 0.4)
    if tail == "curved":
        return [[*loop, right, *bent(right, (random.uniform(0.1, 0.5), 1.0), random.uniform(0.12, 0.28))]]
    return [[*loop, right, *arc(right[0] - reach, 1 - depth, reach, depth, 0, random.uniform(100, 170))]]


SHAPES: tuple[Callable[[Random], Drawing], ...] = (zero, one, two, three, four, five, six, seven, eight, nine)


def draw_digit(digit: int, random: Random) -> Drawing:
    """A random drawing of a digit, in a square of side 1 or a little outside."""
    drawing = SHAPES[digit](random)
    width = random.uniform(0.65, 1.15)
    slant, turn = random.uniform(-0.2, 0.35), math.radians(random.uniform(-12, 12))
    waves = [(random.uniform(0.0, 0.025), random.uniform(2, 7), random.uniform(0, 2 * math.pi)) for _ in range(4)]

    def place(point: Point) -> Point:
        x, y = (point[0] - 0.5) * width, point[1] - 0.5
        x -= slant * y
        for size, frequency, phase in waves[:2]:
            x += size * math.sin(frequency * point[1] + phase)
        for size, frequency, phase in waves[2:]:
            y += size * math.sin(frequency * point[0] + phase)
        return x * math.cos(turn) - y * math.sin(turn), x * math.sin(turn) + y * math.cos(turn)

    return [[place(point) for point in line] for line in drawing]


def render(drawing: Sequence[Sequence[Point]], thickness: float = THICKNESS) -> Image.Image:
    """The drawing, white on black, with its longer side scaled to `SIDE` pixels and lines of a share of it."""
    points = np.array([point for line in drawing for point in line])
    low, high = points.min(axis=0), points.max(axis=0)
    pen = thickness * SIDE
    scale = (SIDE - pen) / max(float((high - low).max()), 1e-3)
    image = Image.new("L", (SIDE, SIDE))
    draw = ImageDraw.Draw(image)
    centre = (low + high) / 2
    for line in drawing:
        placed = [(SIDE / 2 + (x - centre[0]) * scale, SIDE / 2 + (y - centre[1]) * scale) for x, y in line]
        draw.line(placed, fill=255, width=round(pen))
        for x, y in placed:
            draw.ellipse((x - pen / 2, y - pen / 2, x + pen / 2 - 1, y + pen / 2 - 1), fill=255)
    return image


class DrawnExamples(Examples):
    """Random drawings of digits, each made when it is used, with lines between half and twice the page's thickness."""

    def __init__(self, count: int, seed: int):
        super().__init__(np.arange(count) % 10, [str(digit) for digit in range(10)])
        self.seed = seed

    def image(self, index: int) -> Image.Image:
        random = Random(f"{self.seed}/{index}")
        drawing = draw_digit(int(self.labels[index]), random)
        return PREPARED.resized(render(drawing, THICKNESS * 2 ** random.uniform(-0.8, 0.8)))
