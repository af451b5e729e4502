"""Options of `polynext encrypted`."""

import re

import pytest

from polynext.cli import main
from polynext.encrypted.compiler.planner import Limits
from polynext.encrypted.compiler.shipped import CIFAR10, DIGITS
from polynext.encrypted.runtime.cost import MEBIBYTE


@pytest.mark.parametrize("command", ["plan", "prepare", "demo"])
def test_help_gives_the_true_limits(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["encrypted", command, "--help"])
    printed = re.sub(r"[\s│]+", " ", capsys.readouterr().out)
    fields = {"--memory": ("memory", MEBIBYTE), "--key-memory": ("keys", MEBIBYTE), "--error": ("error", 1)}
    for option, (field, unit) in fields.items():
        limits = {"Default": Limits(), "digits": DIGITS.limits, "cifar10": CIFAR10.limits}
        values = {name: getattr(each, field) / unit for name, each in limits.items()}
        shown = [f"{name}: {v:g}" for name, v in values.items() if name == "Default" or v != values["Default"]]
        assert re.search(rf"{option} [^-]*{'; '.join(shown)}\.", printed), (option, printed)


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
