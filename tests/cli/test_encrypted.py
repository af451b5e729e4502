"""Options of `polynext encrypted`."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from polynext.cli import main
from polynext.cli.encrypted.planning import LimitOptions
from polynext.encrypted.compiler.limits import Limits
from polynext.encrypted.compiler.prepare import limits_of
from polynext.encrypted.compiler.shipped import DIGITS
from polynext.encrypted.runtime.cost import MEBIBYTE


def test_options_replace_the_limits_of_the_run() -> None:
    run = DIGITS.load()
    own = limits_of(run)
    assert LimitOptions().limits(run) == own == Limits(keys=100 * MEBIBYTE, error=2e-3)
    assert LimitOptions(key_memory=7, error=0.5).limits(run) == replace(own, keys=7 * MEBIBYTE, error=0.5)


def test_the_old_option_for_the_network_still_works(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["encrypted", "ask", "nowhere", "x.png", "--offer", "digits"]) == 2
    assert "--offer is now --network" in capsys.readouterr().err


def test_the_old_option_for_threads_still_works(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["encrypted", "run", "nowhere", "--keys", "nothing", "--processes", "1"]) == 2
    assert "--processes is now --threads" in capsys.readouterr().err


def test_threads_that_seal_does_not_have_are_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYNEXT_ENGINE", "seal")
    assert main(["encrypted", "run", "nowhere", "--keys", "nothing", "--threads", "2"]) == 2
    assert "SEAL computes on one thread. The native extension is" in capsys.readouterr().err


def test_ask_reports_a_bad_image_and_answers_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("first.png", "last.png"):
        Image.new("L", (8, 8)).save(name)
    Path("broken.png").write_text("not an image")
    logits = np.array([[0.0, 1.0], [3.0, 2.0]])
    asked: list[Image.Image] = []
    service = SimpleNamespace(
        client_spec=lambda: SimpleNamespace(classes=("cat", "dog")),
        predict=lambda images: asked.extend(images) or SimpleNamespace(logits=logits),
    )
    monkeypatch.setattr("polynext.encrypted.remote.connect", lambda *given, **named: service)
    assert main(["encrypted", "ask", "http://localhost", "first.png", "broken.png", "last.png"]) == 1
    captured = capsys.readouterr()
    assert "broken.png cannot be read as an image" in captured.err and len(asked) == 2
    assert [line.split() for line in captured.out.splitlines()[2:]] == [
        ["first.png", "dog", "1.000"],
        ["last.png", "cat", "3.000"],
    ]
    assert main(["encrypted", "ask", "http://localhost", "broken.png"]) == 1
    assert capsys.readouterr().out == ""
