"""Load and faults: no accepted job is lost, and every client gets a clear response."""

import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable

from polynext.encrypted.server import load_client_spec
from polynext.memory import resident_memory
from tests.encrypted.conftest import logits, promised
from tests.service.conftest import PATIENCE, ByHand, Running, Start, new_job, wait_until

pytestmark = pytest.mark.slow


def children(process: int) -> list[int]:
    tasks = Path(f"/proc/{process}/task")
    return [int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()]


def test_twenty_clients_at_the_same_time(
    start: Start, folder: Path, trained: Any, examples: np.ndarray, tmp_path: Path
) -> None:
    running = start(folder, workers=2, queue=6)
    wanted = logits(trained, examples[:20])

    def ask(number: int) -> np.ndarray:
        client = running.connect(tmp_path / str(number))
        return client.predict(examples[[number] * 3]).logits

    before = resident_memory()
    with ThreadPoolExecutor(20) as threads:
        answers = list(threads.map(ask, range(20)))
    for number, answer in enumerate(answers):
        np.testing.assert_allclose(answer, wanted[[number] * 3], atol=1e-6)
    metrics = running.http().get("/metrics").text
    assert 'polynext_jobs_total{network="small",state="done"} 60.0' in metrics
    assert running.service.store.jobs_in("queued", "running", "done", "failed") == []
    assert resident_memory() - before < 300 * 2**20


def test_clients_beyond_the_limit_learn_when_to_try_again(
    start: Start, seal_folder: Path, examples: np.ndarray
) -> None:
    running = start(seal_folder, workers=1, queue=5)
    by_hand = ByHand(running)
    keys, data = by_hand.send_keys(), by_hand.ciphertext(examples[0])
    process = running.service.workers.process.pid
    os.kill(process, signal.SIGSTOP)  # no job runs until all are submitted
    first = new_job()
    assert by_hand.ask(first, keys, data).status_code == 202
    wait_until(lambda: by_hand.http.get(f"/v1/jobs/{first}").json()["state"] == "running")
    answers = [by_hand.ask(new_job(), keys, data) for _ in range(5)]
    assert [answer.status_code for answer in answers] == [202] * 3 + [429] * 2
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in answers[3:])
    waiting = [answer.json()["id"] for answer in answers[:3]]
    assert [by_hand.http.get(f"/v1/jobs/{job}").json()["position"] for job in waiting] == [0, 1, 2]
    by_hand.http.delete(f"/v1/jobs/{waiting[-1]}").raise_for_status()  # cancelled
    os.kill(process, signal.SIGCONT)
    assert {by_hand.ended(job)["state"] for job in (first, *waiting[:-1])} == {"done"}


@pytest.mark.parametrize("victim", ["fork", "inference process"])
def test_jobs_of_a_killed_process_run_again(start: Start, seal_folder: Path, examples: np.ndarray, victim: str) -> None:
    running = start(seal_folder, workers=1)
    by_hand = ByHand(running)
    keys, data, jobs = by_hand.send_keys(), by_hand.ciphertext(examples[0]), [new_job() for _ in range(5)]
    for job in jobs:
        by_hand.ask(job, keys, data).raise_for_status()
    process = running.service.workers.process.pid
    fork = wait_until(lambda: stopped_child(process))
    os.kill({"fork": fork, "inference process": process}[victim], signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(fork, signal.SIGCONT)
    ended = [by_hand.ended(job) for job in jobs]
    assert {job["state"] for job in ended} == {"done"}
    assert sorted(job["attempts"] for job in ended) == [1, 1, 1, 1, 2]
    assert "polynext_workers_died_total 1.0" in by_hand.http.get("/metrics").text


def stopped_child(process: int) -> int | None:
    """Stop a child in the middle of its work and return it."""
    for child in children(process):
        with suppress(ProcessLookupError, FileNotFoundError):
            os.kill(child, signal.SIGSTOP)
            if wait_until(lambda child=child: state(child) in "TZX" and state(child)) == "T":
                return child
    return None


def state(process: int) -> str:
    """The letter of the process state in /proc."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_job_whose_workers_all_die_fails(start: Start, seal_folder: Path, examples: np.ndarray) -> None:
    running = start(seal_folder, workers=1, attempts=2)
    by_hand = ByHand(running)
    keys, job = by_hand.send_keys(), new_job()
    by_hand.ask(job, keys, by_hand.ciphertext(examples[0]))
    stopping = threading.Event()

    def kill_all() -> None:
        while not stopping.wait(0.01):
            for child in children(running.service.workers.process.pid):
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)

    killer = threading.Thread(target=kill_all)
    killer.start()
    try:
        ended = by_hand.ended(job)
    finally:
        stopping.set()
        killer.join()
    assert ended["state"] == "failed" and "the worker died in each of 2 attempts" in ended["error"]
    gone = by_hand.http.get(f"/v1/jobs/{job}/answer")
    assert (gone.status_code, gone.json()["code"]) == (410, "failed")


SERVE = """
import sys
from pathlib import Path
from polynext.service import Settings, load_networks, serve
if __name__ == "__main__":
    networks = load_networks([Path(sys.argv[1])], allow_unencrypted=True)
    serve(networks, Path(sys.argv[2]), port=int(sys.argv[3]), settings=Settings(workers=1, free_disk=0))
"""


@contextmanager
def served(folder: Path, data: Path, port: int = 0) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A service in its own process."""
    script = data.with_suffix(".py")
    script.write_text(SERVE)
    command = [sys.executable, str(script), str(folder), str(data), str(port)]
    with data.with_suffix(".log").open("a") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    with process.stdout:
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()
            process.wait()


def test_a_killed_server_resumes_its_jobs(
    running: Running, seal_folder: Path, examples: np.ndarray, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    with served(seal_folder, data) as (process, url):
        elsewhere = Running.__new__(Running)
        elsewhere.url, elsewhere.clients = url, []
        elsewhere.networks = {"small": network_of(seal_folder)}
        by_hand = ByHand(elsewhere)
        keys, jobs = by_hand.send_keys(), [new_job() for _ in range(4)]
        for job in jobs:
            assert by_hand.ask(job, keys, by_hand.ciphertext(examples[0])).status_code == 202
        wait_until(lambda: by_hand.http.get(f"/v1/jobs/{jobs[0]}").json()["state"] == "done")
        orphans = children(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait()
    wait_until(lambda: not any(Path(f"/proc/{child}").exists() for child in orphans))
    with served(seal_folder, data, int(url.rsplit(":", 1)[1])) as (process, _):
        states = [by_hand.ended(job) for job in jobs]
        assert [state["state"] for state in states] == ["done"] * 4
        for job in jobs:
            path = tmp_path / job
            path.write_bytes(by_hand.http.get(f"/v1/jobs/{job}/answer").content)
            parameters = by_hand.network.spec.parameters
            by_hand.network.ring.load_ciphertext(path, parameters.depth, parameters.result_scale)
        process.terminate()
        assert process.wait(PATIENCE) == 0
    by_hand.http.close()
    log = data.with_suffix(".log").read_text()
    assert '"event": "stopped"' in log
    assert "Traceback" not in log and keys not in log and not any(job in log for job in jobs)


def network_of(folder: Path) -> Any:
    from polynext.service import load_networks

    return load_networks([folder], allow_unencrypted=True)["small"]


def test_an_interrupted_upload_resumes(start: Start, seal_folder: Path) -> None:
    running = start(seal_folder)
    by_hand = ByHand(running)
    keys, data = by_hand.announce(), by_hand.parts["rotation-1"]
    host, port = running.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as cut:
        path = f"/v1/keys/{keys}/parts/rotation-1?offset=0"
        cut.sendall(f"PUT {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data[:100_000])
        wait_until(lambda: state_of(by_hand, keys)["received"] == 100_000 or state_of(by_hand, keys)["received"])
        busy = by_hand.put(keys, "rotation-1", data)
        assert (busy.status_code, busy.json()["code"]) == (409, "busy")
    wait_until(lambda: (running.data / "keys" / keys).exists() and not running.service.uploading)
    received = state_of(by_hand, keys)["received"]
    assert 0 < received <= 100_000
    assert by_hand.put(keys, "rotation-1", data[received:], received).json()["complete"]


def state_of(by_hand: ByHand, keys: str) -> dict[str, Any]:
    parts = by_hand.http.get(f"/v1/keys/{keys}").json()["parts"]
    return next(part for part in parts if part["name"] == "rotation-1")


@contextmanager
def small_disk(folder: Path, mebibytes: int) -> Iterator[Path]:
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting a small disk needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_is_reported(start: Start, folder: Path, examples: np.ndarray, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 4) as disk:
        running = start(folder, data=disk)
        by_hand = ByHand(running)
        keys, data = by_hand.send_keys(), by_hand.ciphertext(examples[0])
        filler = disk / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass
        for _ in range(3):
            refused = by_hand.ask(new_job(), keys, data)
            assert (refused.status_code, refused.json()["code"]) == (507, "disk_full")
            assert int(refused.headers["retry-after"]) >= 1
        assert ByHand(running).http.post("/v1/keys", json=ByHand(running).manifest()).status_code == 507
        filler.unlink()
        job = new_job()
        assert by_hand.ask(job, keys, data).status_code == 202
        assert by_hand.ended(job)["state"] == "done"
        assert list((disk / "jobs").iterdir()) == [disk / "jobs" / job]
        running.stop()


def test_a_thousand_malformed_requests(running: Running) -> None:
    """Requests generated from the OpenAPI description get described responses, and no internal error."""
    import schemathesis
    from schemathesis.checks import CHECKS, load_all_checks

    load_all_checks()
    names = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")
    checks = CHECKS.get_by_names(names)
    schema = schemathesis.openapi.from_url(f"{running.url}/openapi.json")
    count = 0

    for result, mode in itertools.product(schema.get_all_operations(), schemathesis.GenerationMode):

        @given(case=result.ok().as_strategy(generation_mode=mode))
        @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        def fuzz(case: Any) -> None:
            nonlocal count
            count += 1
            case.call_and_validate(base_url=running.url, checks=checks, timeout=PATIENCE)

        with suppress(Unsatisfiable):  # a route without parameters has no malformed requests
            fuzz()
    assert count > 1000
    assert httpx.get(f"{running.url}/ready").status_code == 200


def test_jobs_of_a_dead_node_run_on_another(seal_folder: Path, trained: Any, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    script = Path(__file__).with_name("ray_nodes.py")
    command = [sys.executable, str(script), str(seal_folder), str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=3 * PATIENCE)
    assert result.returncode == 0, result.stderr
    images = np.stack([np.full((1, 4, 4), number / 10) for number in range(3)])
    wanted = logits(trained, images)
    assert np.abs(np.load(tmp_path / "answers.npy") - wanted).max() < promised(load_client_spec(seal_folder).cost)
