"""No command destroys a run, whatever happened to the files in its folder."""

import contextlib
import dataclasses
import io
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from polynext import PolyNeXtError
from polynext.cli import main
from polynext.data import DataConfig
from polynext.recipes import recipe
from polynext.training import EmaConfig, Interrupted, TrainConfig, TrainingLoop, train
from polynext.training.folder import RunFolder, read_state

CONFIG = dataclasses.replace(
    recipe("digits"), data=DataConfig(limit=64), ema=EmaConfig(decay=0.0), epochs=3, batch_size=32, micro_batch=32,
    log_steps=1,
)  # fmt: skip
INTERRUPTED_AT = 5  # of 6 steps, in the last epoch
DAMAGED = ("config.yaml", "environment.json", "metrics.jsonl", "best.safetensors", "last.safetensors", "older", "newer")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without interruption."""
    return train(CONFIG, tmp_path_factory.mktemp("runs") / "whole", quiet=True)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run that was stopped before its last step."""
    step = TrainingLoop.step

    def interrupt(self: TrainingLoop, batches: Any) -> None:
        step(self, batches)
        if self.progress.step == INTERRUPTED_AT:
            self.stop.signal = signal.SIGINT

    out = tmp_path_factory.mktemp("runs") / "interrupted"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(TrainingLoop, "step", interrupt)
        train(CONFIG, out, quiet=True)
    yield out


@pytest.fixture
def run(interrupted: Path, tmp_path: Path) -> Path:
    return shutil.copytree(interrupted, tmp_path / "run")


def file_named(run: Path, name: str) -> Path:
    older, newer = sorted((run / "states").glob("*.pt"))
    return {"older": older, "newer": newer}.get(name, run / name)


def contents(run: Path) -> dict[str, bytes]:
    return {str(p.relative_to(run)): p.read_bytes() for p in run.rglob("*") if p.is_file() and p.name != ".lock"}


def values(run: Path) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    """The weights of the newest state, and the metrics but for the speed."""
    newest = max((run / "states").glob("*.pt"))
    records = [{k: v for k, v in r.items() if k != "images_per_second"} for r in RunFolder(run).records()]
    return read_state(newest)["model"], records


def metadata(path: Path) -> dict[str, str]:
    with safe_open(path, "pt") as file:
        return file.metadata()


def score(path: Path) -> float:
    return float(metadata(path)["test_accuracy"])


def resume(resuming: Callable[[], object]) -> tuple[bool, str]:
    """Whether a run was resumed, and all messages."""
    shown = io.StringIO()
    with (
        contextlib.redirect_stdout(shown),
        contextlib.redirect_stderr(shown),
        warnings.catch_warnings(record=True) as warned,
    ):
        warnings.simplefilter("always")
        try:
            status = resuming()
        except PolyNeXtError as error:
            return False, str(error)
    lines = [line for line in shown.getvalue().splitlines() if not line.startswith(("epoch ", "best test accuracy"))]
    return status != 2, "\n".join([*lines, *(str(warning.message) for warning in warned)])


def damage(data: bytes, kind: str, place: float) -> bytes | None:
    at = min(int(place * len(data)), len(data) - 1)
    return {
        "missing": None,
        "empty": b"",
        "truncated": data[:at],
        "altered": data[:at] + bytes([data[at] ^ 0x15]) + data[at + 1 :],
        "zeros": data[:at] + bytes(len(data) - at),
    }[kind]


damages = st.dictionaries(
    st.sampled_from(DAMAGED),
    st.tuples(st.sampled_from(["missing", "empty", "truncated", "altered", "zeros"]), st.floats(0, 1)),
    min_size=1,
)


def check_resuming(interrupted: Path, whole: Path, chosen: dict[str, tuple[str, float]], by_command: bool) -> None:
    """Resuming a damaged run gives equal results or a message, and keeps every file of value."""
    with TemporaryDirectory() as folder:
        run = shutil.copytree(interrupted, Path(folder) / "run")
        damaged = set()
        for name, (kind, place) in chosen.items():
            path = file_named(interrupted, name)
            data = damage(path.read_bytes(), kind, place)
            if data != path.read_bytes():
                damaged.add(name)
                target = run / path.relative_to(interrupted)
                target.unlink() if data is None else target.write_bytes(data)
        before = contents(run)
        command = ["train", "--resume", str(run)]
        done, message = resume(lambda: main(command) if by_command else train(CONFIG, run, resume=True))
        after = contents(run)
        if not done:
            assert after == before and message
            return
        replaced = {"config.yaml", "environment.json"} | (set() if "newer" in damaged else {"older"})
        for name in damaged - replaced:
            data = before.get(str(file_named(interrupted, name).relative_to(interrupted)))
            repeated = name == "metrics.jsonl" and values(run)[1] == values(whole)[1]
            assert not data or data in after.values() or repeated, name
        if "best.safetensors" not in damaged and after["best.safetensors"] != before["best.safetensors"]:
            assert score(run / "best.safetensors") > score(interrupted / "best.safetensors")
        if not message:
            (weights, metrics), (expected, expected_metrics) = values(run), values(whole)
            assert all(torch.equal(weights[name], expected[name]) for name in expected)
            assert metrics == expected_metrics
            for name in ("best.safetensors", "last.safetensors"):
                assert metadata(run / name) == metadata(whole / name)  # with a checksum of the weights


# Shrinking takes minutes, because each case trains.
OPTIONS: dict[str, Any] = {"deadline": None, "phases": (Phase.generate,), "suppress_health_check": list(HealthCheck)}


@settings(max_examples=12, **OPTIONS)
@given(chosen=damages, by_command=st.booleans())
def test_a_damaged_run_is_resumed_or_refused(interrupted: Path, whole: Path, chosen: Any, by_command: bool) -> None:
    check_resuming(interrupted, whole, chosen, by_command)


@pytest.mark.slow
@settings(max_examples=200, **OPTIONS)
@given(chosen=damages, by_command=st.booleans())
def test_many_damaged_runs_are_resumed_or_refused(
    interrupted: Path, whole: Path, chosen: Any, by_command: bool
) -> None:
    check_resuming(interrupted, whole, chosen, by_command)


@pytest.mark.parametrize("kind", ["truncated", "missing"])
def test_without_an_intact_state_a_run_stays_as_it_is(run: Path, kind: str) -> None:
    for path in (run / "states").glob("*.pt"):
        path.unlink() if kind == "missing" else path.write_bytes(path.read_bytes()[:-100])
    before = contents(run)
    expected = "no intact state to resume from, only .*best.safetensors, last.safetensors, metrics of 2 round"
    with pytest.raises(PolyNeXtError, match=expected):
        train(CONFIG, run, resume=True, quiet=True)
    with pytest.raises(PolyNeXtError, match="already has a run"):
        train(CONFIG, run, quiet=True)
    assert contents(run) == before


def test_damaged_states_are_kept_beside_the_new_ones(run: Path) -> None:
    newest = file_named(run, "newer")
    damaged = newest.read_bytes()[:-100]
    newest.write_bytes(damaged)
    (run / "states" / "zzz.pt").write_bytes(b"of the user")
    with pytest.warns(UserWarning, match=rf"{newest.name} is damaged and now named .*; the state before it is used"):
        train(CONFIG, run, resume=True, quiet=True)
    assert newest.with_name(f"{newest.name}.damaged").read_bytes() == damaged
    steps = [path.name[:9] for path in sorted((run / "states").glob("0*.pt"))]
    assert steps == ["000000004", "000000006"]  # the one that was resumed, and the new one
    assert (run / "states" / "zzz.pt").exists()


def test_better_weights_than_those_of_the_state_are_kept(run: Path) -> None:
    """As after a kill between saving the weights and saving the state."""
    folder = RunFolder(run)
    folder.save_weights("best", {"x": torch.ones(1)}, test_accuracy="99.9")
    train(CONFIG, run, resume=True, quiet=True)
    assert score(run / "best.safetensors") == 99.9


def test_lost_weights_are_written_again(run: Path) -> None:
    (run / "best.safetensors").write_bytes(b"no weights")
    (run / "last.safetensors").unlink()
    with (
        pytest.warns(UserWarning, match=r"last.safetensors was lost: the weights of step 5 take its place"),
        pytest.warns(UserWarning, match="best.safetensors is damaged and now named best.safetensors.damaged"),
    ):
        train(CONFIG, run, resume=True, quiet=True)
    assert (run / "best.safetensors.damaged").read_bytes() == b"no weights"
    assert score(run / "best.safetensors") >= score(run / "last.safetensors") > 0


def test_changed_options_are_reported(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed: TrainConfig = dataclasses.replace(CONFIG, seed=7)
    train(changed, run, resume=True)
    assert "resumed at step 5 with changes: seed from 0 to 7" in capsys.readouterr().out
