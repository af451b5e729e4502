"""Time of the page and of a Python client: `make page`, then `python -m benchmarks.page`.

Each visit opens the page in a new Chromium, draws a three (or chooses the first sample, if the network classifies
photographs), and classifies it several times. After each visit, a new Python client does the same. `--pictures
docs/figures` also saves the screenshots for the documentation.
"""

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from polynext.encrypted.compiler.shipped import MNIST, SHIPPED, shipped_server
from polynext.encrypted.remote import connect
from polynext.preprocessing import open_picture
from polynext.tables import table
from tests.service import browser
from tests.service.conftest import Running

WINDOW = {"width": 1240, "height": 900}


def visit(url: str, answers: int, pictures: Path | None) -> tuple[list[float], dict[str, tuple[int, int]]]:
    """Seconds from opening the page to the first answer, then of each further answer; and the page's table of steps."""
    with browser.browser(viewport=WINDOW, device_scale_factor=2, color_scheme="light") as context:
        page = context.new_page()
        start = time.perf_counter()
        page.goto(url)
        page.wait_for_selector("#samples button")
        if page.is_visible("#pad"):
            browser.draw(page, browser.THREE)
        else:
            page.click("#samples button")
        page.click("#ask")
        browser.logits(page)
        took = [time.perf_counter() - start]
        first = browser.ledger(page)
        while len(took) < answers:
            start = time.perf_counter()
            page.click("#ask")
            page.wait_for_selector("#answer .none")
            browser.logits(page)
            took.append(time.perf_counter() - start)
        if pictures is not None:
            save_pictures(page, pictures)
    return took, first


def save_pictures(page: Any, folder: Path) -> None:
    for scheme, name in (("light", "page"), ("dark", "page-dark")):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_timeout(1000)  # wait for transitions
        browser.save_picture(page, folder / f"{name}.png")
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_timeout(1000)
    browser.save_picture(page, folder / "page-phone.png")


@contextmanager
def browser_memory() -> Iterator[list[int]]:
    """A list of the memory of all Chromium processes of this process, in bytes, sampled four times a second."""
    found, over = [0], threading.Event()

    def look() -> None:
        while not over.wait(0.25):
            found.append(sum(proportional(process) for process in descendants(os.getpid())))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield found
    finally:
        over.set()
        looking.join()


def descendants(process: int) -> Iterator[int]:
    with suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{process}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield int(child)
                yield from descendants(int(child))


def proportional(process: int) -> int:
    """The proportional set size of a Chromium process in bytes; 0 for other processes."""
    with suppress(FileNotFoundError, ProcessLookupError):
        if Path(f"/proc/{process}/comm").read_text().startswith("chrom"):
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
            return next(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return 0


def ask(running: Running, picture: Path, answers: int) -> list[float]:
    """Seconds of each answer with a Python client."""
    with tempfile.TemporaryDirectory() as folder:
        client = connect(running.url, keys=Path(folder) / "keys", progress=lambda what, share: None)
        took = []
        for _ in range(answers):
            start = time.perf_counter()
            client.predict([open_picture(picture)])
            took.append(time.perf_counter() - start)
        client.forget_keys()
        return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=list(SHIPPED), default=MNIST.name)
    parser.add_argument("--visits", type=int, default=3)
    parser.add_argument("--answers", type=int, default=4, help="answers per visit")
    parser.add_argument("--pictures", type=Path, help="folder for screenshots of the page")
    given = parser.parse_args()
    if why := browser.missing():
        raise SystemExit(f"this benchmark needs the page and a browser: {why}.")
    folder = shipped_server(SHIPPED[given.network])
    with tempfile.TemporaryDirectory() as data, browser_memory() as memory:
        running = Running(Path(data), folder)
        sample = next(iter(running.networks[given.network].samples.values()))
        visits, asked = [], []
        for number in range(given.visits):
            visits.append(visit(running.url, given.answers, given.pictures if number == 0 else None))
            asked.append(ask(running, sample, given.answers))
        running.stop()
    steps = {step: [ledger[step] for _, ledger in visits] for step in visits[0][1]}
    rows = [
        (step, f"{statistics.median(ms for ms, _ in all_) / 1000:.2f} s", f"{all_[0][1] / 1e6:.2f} MB")
        for step, all_ in steps.items()
    ]
    print(table(("first visit", "time", "size"), rows, left=(0,)))
    for what, times in (("page", [took for took, _ in visits]), ("Python", asked)):
        first, later = np.array([t[0] for t in times]), np.array([t[1:] for t in times])
        print(f"{what}: first answer after {np.median(first):.1f} s, the next after {np.median(later):.1f} s")
    print(f"browser: at most {max(memory) / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
