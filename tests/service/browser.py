"""Chromium and the built page, if both are available."""

import importlib.util
import math
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from polynext.service.app import PAGE
from tests.service.conftest import PATIENCE

# Chromium sends no requests of its own. Containers have no sandbox.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def chromium() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def missing() -> str | None:
    """Why the page cannot be tested in a browser here, and what to do."""
    if not (PAGE / "index.html").is_file():
        return "the page is not built: make page"
    if chromium() is None:
        return "there is no Chromium: apt-get install chromium"
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed: pip install '.[dev]'"
    return None


@contextmanager
def browser(**options: Any) -> Iterator[Any]:
    """A new Chromium with an empty profile."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as profile:
        context = playwright.chromium.launch_persistent_context(
            profile, executable_path=chromium(), args=FLAGS, headless=True, **options
        )
        context.set_default_timeout(1000 * PATIENCE)
        try:
            yield context
        finally:
            context.close()


def ellipse(x: float, y: float, across: float, down: float, degrees: range) -> list[tuple[float, float]]:
    """Points of an ellipse around (x, y), clockwise from its right."""
    return [(x + across * math.cos(math.radians(d)), y + down * math.sin(math.radians(d))) for d in degrees]


THREE = [*ellipse(0.48, 0.28, 0.2, 0.18, range(-155, 90, 3)), *ellipse(0.47, 0.68, 0.24, 0.22, range(-90, 150, 3))]


def draw(page: Any, line: list[tuple[float, float]]) -> None:
    """Draw a line with the pointer; coordinates are relative to the sheet."""
    box = page.locator("#pad").bounding_box()
    points = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in line]
    page.mouse.move(*points[0])
    page.mouse.down()
    for point in points[1:]:
        page.mouse.move(*point)
    page.mouse.up()


def logits(page: Any) -> list[float]:
    """Wait for the answer and read it from the bars."""
    page.wait_for_selector("#answer strong")
    return page.eval_on_selector_all("#bars li", "rows => rows.map(row => Number(row.dataset.logit))")


def ledger(page: Any) -> dict[str, tuple[int, int]]:
    """Milliseconds and bytes of each step, from the table on the page."""
    rows = page.eval_on_selector_all("#ledger tr", "rows => rows.map(row => ({...row.dataset}))")
    return {row["step"]: (int(row["milliseconds"]), int(row["bytes"] or 0)) for row in rows}


def save_picture(page: Any, path: Path) -> None:
    """Save a screenshot of the top of the page, down to the end of the three panes."""
    page.evaluate("scrollTo(0, 0)")
    page.mouse.move(0, 0)
    height = page.locator(".flow").bounding_box()["y"] + page.locator(".flow").bounding_box()["height"]
    clip = {"x": 0, "y": 0, "width": page.viewport_size["width"], "height": height + 32}
    page.screenshot(path=path, clip=clip, full_page=True)
