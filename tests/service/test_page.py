"""The page in a browser: a drawn three is classified, and neither the image nor the key leaves the tab."""

import base64
import io
import re
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from polynext.encrypted.client_spec import ClientSpec
from polynext.encrypted.compiler.prepare import save_samples
from polynext.encrypted.compiler.shipped import MNIST, shipped_server
from polynext.encrypted.server import SAMPLES, load_client_spec
from polynext.preprocessing import open_picture
from polynext.service import app
from tests.encrypted.conftest import logits as logits_in_the_clear
from tests.encrypted.conftest import promised
from tests.service import browser, drawn_digits
from tests.service.conftest import Running, Start, wait_until
from tests.service.test_seal import Recorder

# All tests share one visit, so they run in one process.
pytestmark = pytest.mark.xdist_group("page")
in_browser = pytest.mark.skipif(bool(browser.missing()), reason=browser.missing() or "")


@dataclass
class Visit:
    """An open page with a drawn three and its answer."""

    page: Any
    running: Running
    recorder: Recorder
    drawn: np.ndarray
    answer: list[float]
    requested: list[str] = field(default_factory=list)

    def seen(self) -> np.ndarray:
        """The network's input, as the page shows it."""
        picture = self.page.eval_on_selector("#seen", "canvas => canvas.toDataURL()")
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(picture.partition(",")[2]))).convert("L"))

    def answered(self) -> bool:
        """Whether the page shows any part of an answer."""
        return self.page.locator("#answer strong, #bars .best, #bars [data-logit]").count() > 0

    def draw(self, drawing: list[str]) -> np.ndarray:
        """Draw on an empty sheet. Returns the network's input."""
        self.page.click("#clear")
        for line in drawn_digits.strokes(drawing):
            browser.draw(self.page, line)
        return self.seen()

    def ask(self) -> list[float]:
        self.page.click("#ask")
        return browser.logits(self.page)


@pytest.fixture(scope="module")
def visit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visit]:
    running = Running(tmp_path_factory.mktemp("service"), shipped_server())
    requested: list[str] = []
    try:
        with Recorder(running.url) as recorder, browser.browser(viewport={"width": 1280, "height": 960}) as context:
            context.on("request", lambda request: requested.append(request.url))
            page = context.new_page()
            page.goto(recorder.url)
            page.wait_for_selector("#samples button")
            browser.draw(page, browser.THREE)
            made = Visit(page, running, recorder, np.empty(0), [], requested)
            made.drawn = made.seen()
            made.answer = made.ask()
            yield made
    finally:
        running.stop()


def python_logits(pixels: np.ndarray) -> np.ndarray:
    """The logits of the network's input as grey pixels, in the clear."""
    run = MNIST.load()
    prepared = run.preprocessing.normalise(Image.fromarray(pixels)).astype(np.float64)
    return logits_in_the_clear(run.model, prepared[None])[0]


def assert_close(found: list[float], wanted: np.ndarray) -> None:
    assert np.abs(np.array(found) - wanted).max() < promised(load_client_spec(shipped_server()).cost)


@in_browser
def test_a_drawn_three_is_classified(visit: Visit) -> None:
    assert visit.page.inner_text("#answer strong") == "3"
    assert visit.page.inner_text("#bars .best .class") == "3"
    assert_close(visit.answer, python_logits(visit.drawn))


def varied(values: np.ndarray, count: int) -> np.ndarray:
    """The `count` consecutive values with the most different ones, which do not occur elsewhere by chance."""
    flat = values.reshape(-1)
    return max((flat[i : i + count] for i in range(len(flat) - count)), key=lambda part: len(np.unique(part)))


@in_browser
def test_neither_key_nor_pixels_leave_the_tab(visit: Visit) -> None:
    (worker,) = visit.page.workers
    pieces = worker.evaluate(
        """() => ['none', 'zlib', 'zstd'].flatMap((mode) => {
            const bytes = vault.secretKey.saveToArray(vault.seal.ComprModeType[mode])
            return [200, 5000, bytes.length >> 1].map((at) => btoa(String.fromCharCode(...bytes.slice(at, at + 48))))
        })"""
    )
    spec = ClientSpec.load(shipped_server() / "client_spec.json")
    prepared = spec.preprocessing.normalise(Image.fromarray(visit.drawn)).astype(np.float64)
    private = [base64.b64decode(piece) for piece in pieces]
    for values in (visit.drawn, visit.drawn.astype("<f8"), prepared, prepared.astype("<f4"), spec.pack(prepared[None])):
        private.append(varied(values, 16).tobytes())
    private.append(",".join(map(str, varied(visit.drawn, 16))).encode())
    on_disk = b"".join(path.read_bytes() for path in visit.running.data.rglob("*") if path.is_file())
    traffic = bytes(visit.recorder.traffic)
    assert len(traffic) > 2e7 and len(on_disk) > 2e7
    assert not any(piece in seen for piece in private for seen in (traffic, on_disk))


@in_browser
def test_no_other_host_gets_requests(visit: Visit) -> None:
    assert len(visit.requested) > 20
    assert all(re.match(rf"{visit.recorder.url}/|blob:{visit.recorder.url}/|data:", url) for url in visit.requested)


@in_browser
def test_the_default_network_has_small_keys(visit: Visit) -> None:
    spec = ClientSpec.load(shipped_server() / "client_spec.json")
    assert spec.parameters.ring_degree <= 2**14
    assert browser.ledger(visit.page)["send keys"][1] <= 60e6


@in_browser
def test_digits_as_people_draw_them(visit: Visit) -> None:
    """All drawings are drawn in the browser, and the network classifies what the page prepared."""
    run, wrong = MNIST.load(), []
    for digit, number, drawing in drawn_digits.all_drawings():
        seen = run.preprocessing.normalise(Image.fromarray(visit.draw(drawing)))
        found = logits_in_the_clear(run.model, seen.astype(np.float64)[None])[0]
        assert np.abs(found).max() < load_client_spec(shipped_server()).largest_logit
        if found.argmax() != int(digit):
            wrong.append((digit, number, int(found.argmax())))
    assert len(list(drawn_digits.all_drawings())) >= 60 and len(wrong) <= 2, wrong


@pytest.mark.slow
@in_browser
def test_encrypted_digits_as_people_draw_them(visit: Visit) -> None:
    """Two drawings of each digit have the logits that they have in the clear, for which the test above is."""
    chosen = [drawing for _, number, drawing in drawn_digits.all_drawings() if number < 2]
    assert len(chosen) == 20
    for drawing in chosen:
        seen = visit.draw(drawing)
        assert_close(visit.ask(), python_logits(seen))


@in_browser
def test_an_image_file(visit: Visit, tmp_path: Path) -> None:
    """Preprocessing equals Python's: upright, resized, grey. Dark ink on light paper is inverted first."""
    digit = Image.open(next(iter(visit.running.networks["mnist"].samples.values()))).resize((57, 40))
    turned = Image.fromarray(255 - np.asarray(digit.convert("RGB")))
    turned.save(tmp_path / "paper.png")
    visit.page.set_input_files("#file", tmp_path / "paper.png")
    visit.page.wait_for_selector("#swap:checked")
    run = MNIST.load()
    black = Image.fromarray(255 - np.asarray(open_picture(tmp_path / "paper.png")))
    wanted = logits_in_the_clear(run.model, run.preprocessing(black).astype(np.float64)[None])[0]
    assert_close(visit.ask(), wanted)


@in_browser
def test_an_error_ends_with_the_next_picture(visit: Visit, tmp_path: Path) -> None:
    page = visit.page
    (tmp_path / "broken.png").write_bytes(b"not an image")
    Image.new("L", (28, 28)).save(tmp_path / "whole.png")
    page.set_input_files("#file", tmp_path / "broken.png")
    page.wait_for_selector("#trouble:not([hidden])")
    page.set_input_files("#file", tmp_path / "whole.png")
    page.wait_for_selector("#trouble", state="hidden")


@in_browser
def test_the_page_works_with_the_keyboard_alone(visit: Visit) -> None:
    page = visit.page
    page.click("#clear")
    assert not visit.answered()
    page.focus("#file")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("ArrowRight")
    assert focused(page) == "02 1"  # samples are one tab stop; the buttons are disabled while the sheet is empty
    page.keyboard.press("Shift+Tab")
    assert focused(page) == "pad"
    page.keyboard.press(" ")
    for _ in range(12):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert len(browser.logits(page)) == 10
    assert page.inner_text("#answer strong") == "1"
    page.keyboard.press("ArrowLeft")  # the pen is still down, so it draws
    assert not visit.answered()


def focused(page: Any) -> str:
    return page.evaluate("document.activeElement.id || document.activeElement.title")


@in_browser
def test_narrow_windows_and_dark_mode(visit: Visit) -> None:
    page = visit.page
    grounds = set()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        grounds.add(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))
        for width in (320, 390, 820):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert len(grounds) == 2


@in_browser
def test_leaving_the_page_deletes_keys_and_jobs(visit: Visit) -> None:
    store = visit.running.service.store
    visit.page.click("#ask")
    wait_until(lambda: visit.running.call(store.jobs_in, "running"))
    assert list(store.keys.iterdir())
    visit.page.goto("about:blank")
    wait_until(lambda: not list(store.keys.iterdir()) and not list(store.jobs.iterdir()))


@in_browser
def test_another_host_can_deliver_the_page(visit: Visit, start: Start, seal_folder: Path, tmp_path: Path) -> None:
    """Whoever does not trust a service to deliver the page can use a copy of it from another origin."""
    site = Path(shutil.copytree(app.PAGE, tmp_path / "site"))
    handler = partial(SimpleHTTPRequestHandler, directory=site)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        origin = f"http://127.0.0.1:{server.server_port}"
        running = start(seal_folder, page_origins=(origin,))
        html = (site / "index.html").read_text()
        assert '<meta name="service" content="" />' in html
        (site / "index.html").write_text(
            html.replace('name="service" content=""', f'name="service" content="{running.url}"')
        )
        Image.new("L", (4, 4), 200).save(tmp_path / "picture.png")
        page = visit.page.context.new_page()
        requested: list[str] = []
        page.on("request", lambda request: requested.append(request.url))
        page.goto(origin)
        page.wait_for_function("/[0-9]/.test(document.querySelector('#fact-rotations').textContent)")
        page.set_input_files("#file", tmp_path / "picture.png")
        page.wait_for_selector("#sheet.filled")
        page.click("#ask")
        assert len(browser.logits(page)) == 3
        page.close()
        server.shutdown()
        thread.join()
    from_service = [url for url in requested if url.startswith(running.url)]
    assert from_service and all(url.startswith(f"{running.url}/v1/") for url in from_service)
    other = {"Origin": "http://elsewhere.example"}
    assert "access-control-allow-origin" not in running.http().get("/v1/service", headers=other).headers


def test_the_service_works_without_the_page(
    start: Start, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "PAGE", tmp_path / "none")
    http = start(folder).http()
    assert "<code>make page</code>" in http.get("/").text
    assert http.get("/v1/networks").json()[0]["name"] == "small"


def test_samples_are_public(start: Start, folder: Path, tmp_path: Path) -> None:
    prepared = Path(shutil.copytree(folder, tmp_path / "small"))
    save_samples(MNIST.load(), prepared / SAMPLES, 3)
    http = start(prepared).http()
    assert http.get("/v1/networks/small").json()["samples"] == ["01-0.png", "02-1.png", "03-2.png"]
    picture = http.get("/v1/networks/small/samples/02-1.png")
    assert Image.open(io.BytesIO(picture.content)).size == (28, 28)
    for missing in ("small/samples/other.png", "small/samples/client_spec.json", "other/samples/02-1.png"):
        assert http.get(f"/v1/networks/{missing}").status_code == 404
