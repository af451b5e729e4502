"""Clients and a hostile server: it learns nothing from them, and what it publishes does not harm them."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from polynext.encrypted import connect
from polynext.encrypted.client_spec import ClientSpec
from polynext.encrypted.remote import MOST_KEY_SETS
from polynext.errors import PolyNeXtError
from polynext.service import load_networks
from tests.service import browser
from tests.service.conftest import PATIENCE
from tests.service.hostile import HostileService, hostile, mutated

WEB = Path(__file__).parents[2] / "web"
Change = Callable[[dict[str, Any]], None]
DEPTH_ZERO = {"prime_bits": [60, 60], "input_bits": 40, "result_bits": 40, "primes": []}


def published(folder: Path) -> HostileService:
    """What an honest service publishes for a server folder, as JSON."""
    network = load_networks([folder])["small"]
    return HostileService(json.loads(json.dumps(network.description)), network.summary().model_dump())


# How a server may change its description so that a client fails for some images. The first one is harmless.
CHANGES: dict[str, Change] = {
    "nothing": lambda table: None,
    "a low limit of logits": lambda table: table["cost"].update(largest_logit=0.05),
    "drawings": lambda table: table["preprocessing"].update(crop="drawing"),
    "values that overflow": lambda table: table["preprocessing"].update(mean=[0.0], std=[1e-30]),
    "an input without room": lambda table: table["parameters"].update(input_bits=58),
    "a mean far away": lambda table: table["preprocessing"].update(mean=[1e30], std=[1e30]),
    "answers from the slots of pixels": lambda table: table["result_layout"].update(codes=[[0, 1, 2]]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_requests_of_the_python_client_do_not_depend_on_the_image(seal_folder: Path, tmp_path: Path, name: str) -> None:
    """The server sends the client's own ciphertext back, so that decryption yields the image itself."""
    service = published(seal_folder)
    service.description["parameters"].update(DEPTH_ZERO)
    CHANGES[name](service.description)
    outcomes = []
    with hostile(service):
        client = connect(service.url, keys=tmp_path / "keys", progress=lambda step, share: None, timeout=PATIENCE)
        for grey in (128, 0, 255):  # the first one sends the keys
            service.traffic.clear()
            with suppress(PolyNeXtError):
                client.predict([Image.new("L", (4, 4), grey)])
            outcomes.append(list(service.traffic))
    assert outcomes[1] == outcomes[2]
    if name == "nothing":
        assert [line.split()[0] for line in outcomes[1]] == ["GET", "GET", "POST", "PUT", "GET", "GET", "DELETE"]


# What decryption may yield: logits, logits beyond every limit, no numbers, or an error.
RESULTS = {"logits": 1.0, "huge": 1e300, "nan": float("nan"), "error": None}
FAILURES = ("nothing", "GET /v1/jobs/ID/events", "GET /v1/jobs/ID/answer", "DELETE /v1/jobs/ID")
SLOW_DECRYPTION = 1.0  # seconds


@pytest.mark.parametrize("failure", FAILURES)
def test_the_python_client_is_silent_once_it_decrypts(seal_folder: Path, tmp_path: Path, failure: str) -> None:
    """Whatever decryption yields, and however long it takes: all requests of a batch arrive before it starts, also
    repeated ones, and the connections end without waiting for it."""
    service = published(seal_folder)
    service.description["parameters"].update(DEPTH_ZERO)
    outcomes = []
    with hostile(service):
        client = connect(service.url, keys=tmp_path / "keys", progress=lambda step, share: None, timeout=PATIENCE)
        client.predict(np.zeros((1, 1, 4, 4)))  # sends the keys
        assert client.client is not None
        for result in RESULTS.values():
            for record in (service.traffic, service.times, service.closed):
                record.clear()
            service.failures = {failure: 1}
            secret = SlowSecret(client.client.secret, result)
            client.client.secret = secret
            with suppress(PolyNeXtError):
                client.predict(np.zeros((3, 1, 4, 4)))
            assert max(service.times) < secret.started[0]
            assert max(service.closed) < secret.started[0] + SLOW_DECRYPTION / 2
            outcomes.append(sorted(service.traffic))  # the jobs of a batch run at the same time
            client.client.secret = secret.secret
    assert all(each == outcomes[0] for each in outcomes)
    assert len(outcomes[0]) == 3 + 3 * 4 + (failure != "nothing")


class SlowSecret:
    """A secret key with slow decryption, which yields a value in all slots, or an error."""

    def __init__(self, secret: Any, result: float | None):
        self.secret, self.result, self.started = secret, result, list[float]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.secret, name)

    def decrypt(self, ciphertext: Any) -> Any:
        if not self.started:
            self.started.append(time.time())
            time.sleep(SLOW_DECRYPTION)
        if self.result is None:
            raise PolyNeXtError("this is not a ciphertext of this key.")
        return np.full_like(self.secret.decrypt(ciphertext), self.result)


# The same for the page, which reads fields that a service derives for it.
PAGE_CHANGES: dict[str, Change] = {
    "nothing": lambda table: None,
    "a low limit of logits": lambda table: table.update(largest_logit=0.05),
    "answers from the slots of pixels": lambda table: table["slots"].update(result=[[0, 1, 2]]),
    "no slots for answers": lambda table: table["slots"].update(result=[[4095, 4095, 4095]]),
    "drawings": lambda table: table["preprocessing"].update(crop="drawing"),
    "values that overflow": lambda table: table["preprocessing"].update(mean=[0.0], std=[1e-30]),
    "an input without room": lambda table: table["browser_parameters"].update(input_scale=2.0**100),
    "classes in other scripts": lambda table: table.update(classes=["\u0434\u0430", "\u4e00", "\u05d0"]),
    "a class that looks like a picture": lambda table: table.update(classes=["<img src=/a.png>", "<b>", "url(/c.png)"]),
}


@pytest.mark.skipif(bool(browser.missing()), reason=browser.missing() or "")
@pytest.mark.xdist_group("page")
def test_requests_of_the_page_do_not_depend_on_the_image(seal_folder: Path, tmp_path: Path) -> None:
    """The built page in Chromium. Decryption yields the image itself, as in the test above."""
    for grey in (0, 128, 255):
        Image.new("RGB", (4, 4), (grey,) * 3).save(tmp_path / f"{grey}.png")
    with browser.browser() as context:
        for name, change in PAGE_CHANGES.items():
            service = published(seal_folder)
            change(service.description)
            with hostile(service):
                page = context.new_page()
                page.goto(service.url)
                outcomes = [visit_with(page, service, tmp_path / f"{grey}.png") for grey in (128, 0, 255)]
                page.close()
            assert outcomes[1] == outcomes[2], name
            if name == "nothing":
                assert [line.split()[0] for line in outcomes[1]] == ["PUT", "GET", "GET", "DELETE"]


@pytest.mark.skipif(bool(browser.missing()), reason=browser.missing() or "")
@pytest.mark.xdist_group("page")
def test_the_page_is_silent_once_it_decrypts(seal_folder: Path, tmp_path: Path) -> None:
    """As in the test of the Python client, in Chromium."""
    service = published(seal_folder)
    Image.new("RGB", (4, 4)).save(tmp_path / "picture.png")
    outcomes = []
    with browser.browser() as context, hostile(service):
        page = context.new_page()
        page.goto(service.url)
        visit_with(page, service, tmp_path / "picture.png")  # sends the keys
        (vault,) = page.workers
        for result in RESULTS.values():
            vault.evaluate(SLOW_VAULT, [result and str(result), len(service.description["classes"])])
            outcomes.append(visit_with(page, service, tmp_path / "picture.png"))
            assert max(service.times) < vault.evaluate("started") / 1000
        for failure in FAILURES[1:]:
            service.failures = {failure: 1}
            traffic = visit_with(page, service, tmp_path / "picture.png")
            assert max(service.times) < vault.evaluate("started") / 1000
            assert len(traffic) == len(outcomes[0]) + (not failure.startswith("DELETE"))
    assert all(each == outcomes[0] for each in outcomes)


SLOW_VAULT = f"""([result, classes]) => {{
  self.vault.decrypt = async () => {{
    self.started = Date.now()
    while (Date.now() < self.started + 1000 * {SLOW_DECRYPTION});
    if (result === null) throw new Error('this is not a ciphertext of this key.')
    return Array(classes).fill(Number(result === 'nan' ? NaN : result))
  }}
}}"""


def visit_with(page: Any, service: HostileService, picture: Path) -> list[str]:
    """The requests that follow when a user opens a picture and asks for its class."""
    ready = "/[0-9]/.test(document.querySelector('#fact-rotations').textContent)"
    page.wait_for_function(f"{ready} || !document.querySelector('#trouble').hidden")
    if not page.evaluate(ready):
        return []  # the page refused the description
    service.traffic.clear()
    service.times.clear()
    page.set_input_files("#file", picture)
    page.wait_for_selector("#sheet.filled")
    page.uncheck("#swap")
    page.click("#ask")
    page.wait_for_function("!document.querySelector('#ask').disabled")
    page.wait_for_timeout(300)  # for requests that should not come
    return list(service.traffic)


FUZZ = """
import json, resource, signal, sys
from pathlib import Path
import numpy as np
from PIL import Image
from polynext.encrypted import Client, ClientSpec, get_backend
from polynext.errors import PolyNeXtError
from tests.service.hostile import mutated

description = json.loads(Path(sys.argv[1]).read_text())
size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 2**30,) * 2)
picture, refused, accepted, keys = Image.radial_gradient("L"), 0, 0, {}
for number in range(int(sys.argv[2])):
    text = json.dumps(mutated(description, number))
    signal.alarm(60)  # ends a process that hangs
    try:
        try:
            spec = ClientSpec.from_json(json.loads(text))
        except ValueError as error:
            assert 0 < len(str(error)) < 300 and str(error).isprintable(), (number, str(error))
            refused += 1
            continue
        if (made_for := repr((spec.backend, spec.parameters))) not in keys:
            keys = {made_for: get_backend(spec.backend).ring(spec.parameters).generate_key()}
        key = keys[made_for]
        client = Client(spec, key, "", allow_unencrypted=True)
        (ciphertext,) = client.encrypt(spec.preprocessing(picture).astype(np.float64)[None])
        logits = client.decrypt([ciphertext], 1)
        assert logits.shape == (1, len(spec.classes)), number
        accepted += 1
    except PolyNeXtError:
        refused += 1
    except BaseException as error:
        raise AssertionError(f"description {number}") from error
print(refused, accepted)
"""


def test_a_thousand_mutated_descriptions(seal_folder: Path, tmp_path: Path) -> None:
    """Each is accepted and usable, or refused by one message, within a gigabyte of memory and without a hang."""
    (tmp_path / "description.json").write_text(json.dumps(published(seal_folder).description))
    command = [sys.executable, "-c", FUZZ, str(tmp_path / "description.json"), "1000"]
    root = Path(__file__).parents[2]
    result = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=2 * PATIENCE)
    assert result.returncode == 0, result.stderr[-3000:]
    refused, accepted = map(int, result.stdout.split())
    assert refused + accepted == 1000 and min(refused, accepted) > 100, result.stdout


@pytest.mark.skipif(not (WEB / "node_modules").is_dir(), reason="no web/node_modules: make page")
def test_the_page_checks_a_thousand_mutated_descriptions(seal_folder: Path, tmp_path: Path) -> None:
    description = published(seal_folder).description
    with (tmp_path / "descriptions").open("w") as file:
        for number in range(1000):
            text = json.dumps(mutated(description, number))
            file.write(text + "\n")
    npm = shutil.which("npm")
    assert npm is not None
    settings = {"DESCRIPTIONS": str(tmp_path / "descriptions"), "NODE_OPTIONS": "--max-old-space-size=512"}
    result = subprocess.run(
        [npm, "test"], cwd=WEB, env=os.environ | settings, capture_output=True, text=True, timeout=2 * PATIENCE
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr
    found = re.search(r"(\d+) refused, (\d+) accepted", result.stdout)
    assert found is not None, result.stdout
    refused, accepted = map(int, found.groups())
    assert refused + accepted == 1000 and min(refused, accepted) > 100


RESPONSES = [r"/v1/networks", r"/v1/networks/small", r"/v1/keys", r"/v1/jobs/\w+", r"/v1/jobs/\w+/events"]


@pytest.mark.parametrize("pattern", RESPONSES)
def test_mutated_responses_end_in_one_message(folder: Path, tmp_path: Path, pattern: str) -> None:
    """Every other response of a service: states of keys and jobs, events, lists, and bytes that are not JSON."""
    network = load_networks([folder], allow_unencrypted=True)["small"]
    service = HostileService(json.loads(json.dumps(network.description)), network.summary().model_dump())
    event = pattern.endswith("events")
    with hostile(service):
        client = connect(
            service.url, keys=tmp_path / "k", progress=lambda *_: None, allow_unencrypted=True, timeout=PATIENCE
        )
        service.parts = [{"name": "relinearisation", "bytes": 1, "sha256": ""}]
        honest = json.loads(service.answer("GET", pattern.replace(r"\w+", "0" * 32), b"{}")[1].split(b"data: ")[-1])
        for number in range(25):
            body = json.dumps(mutated(honest, number)).encode()
            body = [body, b"\x00\xff", b"[" * 100_000, b""][min(3, max(0, number - 21))]
            service.overrides = {pattern: b"data: " + body + b"\n\n" if event else body}
            client.timeout = 5.0  # a job that does not end
            try:
                client.predict(np.zeros((1, 1, 4, 4)))
            except PolyNeXtError as error:
                assert str(error).isprintable() and len(str(error)) < 1000


def test_a_changing_server_does_not_fill_the_disk(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    network = load_networks([folder], allow_unencrypted=True)["small"]
    service = HostileService(json.loads(json.dumps(network.description)), network.summary().model_dump())
    with hostile(service):
        client = connect(service.url, progress=lambda *_: None, allow_unencrypted=True, timeout=PATIENCE)
        for number in range(MOST_KEY_SETS + 4):
            service.description["preprocessing"]["mean"] = [number / 100]
            with pytest.raises(PolyNeXtError):  # it is not the answer's level
                client.predict(np.zeros((1, 1, 4, 4)))
        assert len(list(tmp_path.rglob("secret.key"))) == MOST_KEY_SETS
        client.most_key_bytes = 1000
        service.description["preprocessing"]["mean"] = [0.9]
        with pytest.raises(PolyNeXtError, match=r"asks for \d+ MB of keys, and `most_key_bytes` is 0 MB"):
            client.predict(np.zeros((1, 1, 4, 4)))


def test_limits_of_a_client_spec(seal_folder: Path) -> None:
    """Each violation has a message that names it."""
    description = published(seal_folder).description

    def refused(message: str, *place: str, value: Any) -> None:
        table = deepcopy(description)
        at = table
        for name in place[:-1]:
            at = at[name]
        at[place[-1]] = value
        with pytest.raises(ValueError, match=message):
            ClientSpec.from_json(table)

    codes = description["image_layout"]["codes"]
    refused("image_layout.groups: input should be less than", "image_layout", "groups", value=2**63)
    refused("groups are not powers of two", "image_layout", "groups", value=3)
    refused("groups exceed the slots", "image_layout", "groups", value=2)
    refused("two entries have the same slot", "image_layout", "codes", value=[[0] * len(codes[0])])
    refused("preprocessing.resize: input should be less than", "preprocessing", "resize", value=100_000)
    refused("preprocessing.std.0: input should be greater than", "preprocessing", "std", value=[1e-9])
    refused("preprocessing makes images of another shape", "preprocessing", "size", value=3)
    refused("no room for an image", "parameters", "prime_bits", value=[40, 60])
    refused("no room for an answer", "parameters", "result_bits", value=60)
    refused("ring degree is not a power of two", "parameters", "ring_degree", value=5000)
    refused("a rotation exceeds the slots", "rotations", value=[2**14])
    refused("a rotation twice", "rotations", value=[1, 1])
    refused("classes.0: string should match", "classes", value=["\x1b[2J", "b", "c"])
    refused("another number of entries", "classes", value=["a"])
    refused("cost.largest_logit: input should be a finite number", "cost", "largest_logit", value=float("inf"))
