"""The HTTP interface: keys, requests, answers, errors."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import platformdirs
import pytest
from PIL import Image

import polynext.service
from polynext.cli import main
from polynext.encrypted import Plan, connect
from polynext.errors import PolyNeXtError
from polynext.service import Settings, Tokens, load_networks
from polynext.service.settings import Caller
from tests.encrypted.conftest import logits
from tests.service.conftest import ByHand, Running, Start, new_job, save


@pytest.fixture
def by_hand(running: Running) -> ByHand:
    return ByHand(running)


def refusal(response: httpx.Response, status: int, code: str) -> str:
    """Check an error response and return its message."""
    assert (response.status_code, response.json()["code"]) == (status, code), response.text
    message = response.json()["error"]
    assert message.endswith(".") and "\n" not in message and "Traceback" not in message
    return message


def test_predictions_equal_the_network_in_the_clear(
    running: Running, trained: Any, examples: np.ndarray, tmp_path: Path
) -> None:
    steps: list[str] = []
    client = running.connect(tmp_path / "keys", progress=lambda what, share: steps.append(what))
    answer, wanted = client.predict(examples[:3]), logits(trained, examples[:4])
    np.testing.assert_allclose(answer.logits, wanted[:3], atol=1e-6)
    assert answer.labels == tuple("abc"[i] for i in wanted[:3].argmax(axis=1))
    assert {"making keys", "sending keys", "computing", "answered"} <= set(steps)
    assert (tmp_path / "keys").stat().st_mode & 0o077 == 0

    steps.clear()
    again = running.connect(tmp_path / "keys", progress=lambda what, share: steps.append(what))

    async def in_a_loop() -> None:
        by_async = await again.predict_async(examples[3:4])
        np.testing.assert_allclose(by_async.logits, wanted[3:4], atol=1e-6)
        np.testing.assert_allclose(again.predict(examples[3:4]).logits, wanted[3:4], atol=1e-6)  # as in a notebook

    asyncio.run(in_a_loop())
    assert not {"making keys", "sending keys"} & set(steps)
    assert running.call(running.service.store.jobs_in, "queued", "running", "done") == []  # the client deletes its jobs
    client.forget_keys()
    np.testing.assert_allclose(client.predict(examples[3:4]).logits, wanted[3:4], atol=1e-6)  # sends the keys again


def test_python_in_the_docs_runs(start: Start, seal_folder: Path, tmp_path: Path, monkeypatch) -> None:
    page = Path(__file__).parents[2] / "docs" / "serve.md"
    (block,) = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(platformdirs, "user_data_path", lambda name: tmp_path / name)
    Image.new("L", (8, 8)).save("picture.png")
    names: dict[str, Any] = {}
    exec(block.replace("http://127.0.0.1:8000", start(seal_folder).url), names)
    assert names["answer"].logits.shape == (1, 3) and names["answer"].labels[0] in "abc"


def test_a_client_spec_has_all_that_a_browser_needs(by_hand: ByHand, examples: np.ndarray) -> None:
    found, spec = by_hand.http.get("/v1/networks/small").json(), by_hand.network.spec
    gathered = np.append(examples[0].ravel(), 0.0)[np.array(found["slots"]["image"])]
    np.testing.assert_array_equal(gathered, spec.pack(examples[:1]))
    assert found["slots"]["result"] == spec.result_layout.codes.tolist()
    assert [part["name"] for part in found["parts"]] == list(by_hand.parts)
    (summary,) = by_hand.http.get("/v1/networks").json()
    assert (summary["name"], summary["works_in_browser"], found["browser_parameters"]) == ("small", False, None)


def test_only_networks_of_seal_work_in_a_browser(seal_folder: Path) -> None:
    network = load_networks([seal_folder])["small"]
    assert network.summary().works_in_browser
    assert network.description["browser_parameters"]["poly_modulus_degree"] == network.spec.parameters.ring_degree


@pytest.mark.parametrize("path", ["/v1/offers", "/v1/offers/small", "/v1/offers/small/samples/01-0.png"])
def test_old_routes_name_the_new_ones(running: Running, path: str) -> None:
    assert "/v1/offers is now /v1/networks" in refusal(running.http().get(path), 410, "moved")


def test_old_names_in_python_are_deprecated(running: Running, tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning, match=r"connect\(network=...\)"):
        client = connect(running.url, offer="small", keys=tmp_path / "keys")
    assert client.network == "small"
    with pytest.warns(DeprecationWarning, match=r"networks\(\)"):
        assert client.offers() == client.networks()
    with pytest.warns(DeprecationWarning, match="ServedNetwork"):
        assert polynext.service.Network is polynext.service.ServedNetwork


def test_uploads_resume_where_they_stopped(by_hand: ByHand) -> None:
    keys, data = by_hand.announce(), by_hand.parts["relinearisation"]
    assert by_hand.put(keys, "relinearisation", data[:7]).json()["received"] == 7
    again = by_hand.put(keys, "relinearisation", data)
    assert (
        "has 7 bytes of relinearisation: continue there" in refusal(again, 409, "offset")
        and again.json()["received"] == 7
    )
    (state,) = [p for p in by_hand.http.get(f"/v1/keys/{keys}").json()["parts"] if p["received"]]
    assert state == {"name": "relinearisation", "bytes": len(data), "received": 7, "complete": False}
    assert by_hand.put(keys, "relinearisation", data[7:], offset=7).json()["complete"]
    assert by_hand.put(keys, "relinearisation", b"", offset=len(data)).json()["complete"]  # a retry of the last piece
    known = by_hand.http.post("/v1/keys", json=by_hand.manifest())
    assert (known.status_code, known.json()["id"], known.json()["state"]) == (200, keys, "incomplete")
    refusal(by_hand.ask(new_job(), keys, b"x"), 409, "keys_incomplete")
    assert by_hand.http.delete(f"/v1/keys/{keys}").status_code == 204
    refusal(by_hand.http.get(f"/v1/keys/{keys}"), 404, "unknown_keys")


def test_bad_parts_are_deleted(by_hand: ByHand, running: Running) -> None:
    right = by_hand.parts["relinearisation"]
    keys = by_hand.announce()
    damaged = right[:-3] + b"xxx"
    assert "arrived damaged" in refusal(by_hand.put(keys, "relinearisation", damaged), 422, "damaged")
    assert "more than the" in refusal(by_hand.put(keys, "relinearisation", right + b" "), 413, "too_large")
    refusal(by_hand.put(keys, "rotation-3", right), 404, "unknown_part")
    refusal(by_hand.put("0" * 32, "relinearisation", right), 404, "unknown_keys")
    swapped = by_hand.announce(relinearisation=by_hand.parts["rotation-1"])
    message = refusal(by_hand.put(swapped, "relinearisation", by_hand.parts["rotation-1"]), 422, "wrong_part")
    assert message.startswith("relinearisation is not a clear relinearisation key for these parameters")
    files = [f.name for id in (keys, swapped) for f in (running.data / "keys" / id).iterdir() if f.stat().st_size]
    assert files == []


def test_manifests_are_checked(by_hand: ByHand) -> None:
    def announced(**changes: Any) -> httpx.Response:
        return by_hand.http.post("/v1/keys", json={**by_hand.manifest(), **changes})

    parts = by_hand.manifest()["parts"]
    refusal(announced(client_spec="0" * 16), 404, "unknown_client_spec")
    refusal(announced(offer="0" * 16), 422, "invalid")
    assert "in its order" in refusal(announced(parts=parts[1:]), 422, "invalid")
    refusal(announced(parts=[{**parts[0], "bytes": 10**9}, *parts[1:]]), 413, "too_large")
    assert "`parts.0.sha256`" in refusal(announced(parts=[{**parts[0], "sha256": "x"}]), 422, "invalid")
    refusal(by_hand.http.post("/v1/keys", content=b"[" * 10_000), 422, "invalid")
    refusal(by_hand.http.post("/v1/keys", content=b" " * 2**21), 413, "too_large")


def test_a_job_runs_once(by_hand: ByHand, examples: np.ndarray) -> None:
    keys, job, data = by_hand.send_keys(), new_job(), by_hand.ciphertext(examples[0])
    accepted = by_hand.ask(job, keys, data)
    assert accepted.status_code == 202 and accepted.json()["state"] in ("queued", "running")
    assert by_hand.ask(job, keys, data).status_code == 200  # a retry
    refusal(by_hand.ask(job, keys, by_hand.ciphertext(examples[1])), 409, "job_exists")
    ended = by_hand.ended(job)
    assert (ended["state"], ended["attempts"], ended["progress"]) == ("done", 1, 1.0)
    with by_hand.http.stream("GET", f"/v1/jobs/{job}/events") as events:
        assert events.headers["content-type"].startswith("text/event-stream")
        lines = list(events.iter_lines())
    assert lines[0] == "event: job" and json.loads(lines[1].removeprefix("data: ")) == ended
    first, second = (by_hand.http.get(f"/v1/jobs/{job}/answer").content for _ in range(2))
    assert first == second and len(first) == ended["answer_bytes"]
    assert by_hand.http.delete(f"/v1/jobs/{job}").status_code == 204
    refusal(by_hand.http.get(f"/v1/jobs/{job}/answer"), 404, "unknown_job")


def test_requests_are_checked(by_hand: ByHand, running: Running, examples: np.ndarray) -> None:
    keys, data = by_hand.send_keys(), by_hand.ciphertext(examples[0])
    before = set((running.data / "jobs").iterdir())
    refusal(by_hand.ask(new_job(), "0" * 32, data), 404, "unknown_keys")
    refusal(by_hand.ask(new_job(), keys, data, network="large"), 404, "unknown_network")
    assert "the ciphertext is not" in refusal(by_hand.ask(new_job(), keys, b"GIF89a"), 422, "wrong_part")
    cut = data[: data.rindex(b",")] + b"]"
    assert "expected level, size and scale" in refusal(by_hand.ask(new_job(), keys, cut), 422, "wrong_part")
    refusal(by_hand.ask(new_job(), keys, data + b" " * 10**6), 413, "too_large")
    assert "`job`" in refusal(by_hand.ask("not-hex", keys, data), 422, "invalid")
    refusal(by_hand.http.get(f"/v1/jobs/{new_job()}"), 404, "unknown_job")
    assert set((running.data / "jobs").iterdir()) == before


def test_keys_for_another_network_are_refused(
    start: Start, folder: Path, plan: Plan, examples: np.ndarray, tmp_path: Path
) -> None:
    running = start(folder, save(plan, "clear", tmp_path / "other", mean=(0.4,)), tokens=None)
    by_hand = ByHand(running)
    keys = by_hand.send_keys()
    message = refusal(by_hand.ask(new_job(), keys, by_hand.ciphertext(examples[0]), "other"), 409, "wrong_keys")
    assert by_hand.network.spec.fingerprint in message
    with pytest.raises(PolyNeXtError, match=r"has several networks: choose a `network`, one of small, other\."):
        running.connect(tmp_path / "keys").predict(examples[:1])
    running.connect(tmp_path / "keys", network="small").predict(examples[:1])
    with pytest.raises(PolyNeXtError, match=r"has keys for client spec .*: choose another folder"):
        running.connect(tmp_path / "keys", network="other").predict(examples[:1])


def test_tokens(start: Start, folder: Path, examples: np.ndarray, tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(f'[ann]\ntoken = "{"a" * 20}"\nkeys = 1\njobs = 1\n[bob]\ntoken = "{"b" * 20}"\n')
    running = start(folder, tokens=Tokens.load(file, Settings()))
    ann, bob = (ByHand(running, headers={"Authorization": f"Bearer {letter * 20}"}) for letter in "ab")
    nobody = ByHand(running)
    assert nobody.http.get("/v1/service").json()["token_required"]
    for path in ("/v1/networks", "/v1/networks/small", f"/v1/jobs/{new_job()}"):
        assert "Bearer TOKEN" in refusal(nobody.http.get(path), 401, "token")
    keys, job = ann.send_keys(), new_job()
    assert ann.ask(job, keys, ann.ciphertext(examples[0])).status_code == 202
    refusal(bob.http.get(f"/v1/jobs/{job}"), 404, "unknown_job")
    refusal(bob.http.delete(f"/v1/keys/{keys}"), 404, "unknown_keys")
    ann.parts["relinearisation"] += b" "
    refusal(ann.http.post("/v1/keys", json=ann.manifest()), 429, "too_many_keys")
    with pytest.raises(PolyNeXtError, match="needs a token"):
        running.connect(tmp_path / "keys").predict(examples[:1])
    with pytest.raises(PolyNeXtError, match="does not know this token"):
        running.connect(tmp_path / "keys", token="c" * 20).predict(examples[:1])
    assert running.connect(tmp_path / "keys", token="b" * 20).predict(examples[:1]).labels
    file.write_text('[ann]\ntoken = "short"\n')
    with pytest.raises(PolyNeXtError, match=r"at least 16 characters"):
        Tokens.load(file, Settings())
    assert Tokens().caller("anything") is None
    assert Caller("ann", 1, 1) == Tokens.load(written(file, "a" * 20), Settings(jobs=1, keys=1)).caller("a" * 20)


def written(file: Path, token: str) -> Path:
    file.write_text(f'[ann]\ntoken = "{token}"\n')
    return file


def test_health_metrics_and_documentation(running: Running) -> None:
    http = running.http()
    assert http.get("/health").json() == {"status": "alive"}
    assert http.get("/ready").json() == {"status": "ready"}
    assert 'polynext_http_requests_total{method="GET",route="/health",status="200"}' in http.get("/metrics").text
    description = http.get("/openapi.json").json()
    assert "/v1/jobs/{job}" in description["paths"] and "Manifest" in description["components"]["schemas"]
    docs = http.get("/docs")
    assert "PUT /v1/jobs/{job}" in docs.text
    for target in re.findall(r'href="(.*?)"', docs.text):
        assert f'id="{target[1:]}"' in docs.text if target.startswith("#") else http.get(target).status_code == 200
    for response in (docs, http.get("/")):
        assert response.status_code == 200 and not re.search(r"(src|href)=\"?https?:", response.text)
        assert "default-src 'self'" in response.headers["content-security-policy"]
    refusal(http.get("/v1/nothing"), 404, "not_found")
    refusal(http.post("/v1/networks"), 405, "method_not_allowed")


def test_messages_of_the_client_and_the_commands(
    running: Running, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(PolyNeXtError, match=r"is not the address of a service: give one like http://"):
        connect("localhost")
    with pytest.raises(PolyNeXtError, match=r"http://127\.0\.0\.1:9 cannot be reached .*: check the address"):
        connect("http://127.0.0.1:9", timeout=1).networks()
    with pytest.raises(PolyNeXtError, match="which does not encrypt"):
        connect(running.url, keys=tmp_path / "keys").predict(np.zeros((1, 1, 4, 4)))
    with pytest.raises(PolyNeXtError, match="there are no images"):
        running.connect(tmp_path / "k").predict([])
    for arguments, message in [
        (["ask", running.url], "give image files, or --digits"),
        (["ask", "nowhere", "x.png"], "is not the address of a service"),
        (["serve", str(tmp_path)], "has no program.npz"),
        (["serve", str(folder)], "which does not encrypt: prepare it with another"),
        (["serve", str(folder), "--queue", "0"], "--queue is 0: give at least 1"),
    ]:
        assert main(["encrypted", *arguments]) == 2
        assert message in capsys.readouterr().err
