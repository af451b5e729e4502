"""`polynext info`, which bug reports contain."""

import importlib.metadata
import json

import pytest

from polynext import __version__
from polynext.cli import main
from polynext.cli.info import size


def test_info_shows_versions_machine_engines_and_caches(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["versions"]["polynext"].startswith(__version__)
    assert found["versions"]["timm"] == importlib.metadata.version("timm")
    assert found["machine"]["GPUs"] and "cores" in found["machine"]["processor"]
    assert found["extras"]["train"] == "installed"
    assert found["encryption"]["SEAL"][0].isdigit()
    assert "secret keys" in found["caches"]["keys of clients"] or "empty" in found["caches"]["keys of clients"]
    assert main(["info"]) == 0
    assert "native evaluator" in capsys.readouterr().out


def test_a_missing_package_is_shown_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("polynext.cli.info.find_spec", lambda name: None)
    assert main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "pip install" in found["extras"]["encrypted"]
    assert found["encryption"] == {"SEAL": "not installed"}
    assert found["caches"] == {}


def test_size_of_a_folder(tmp_path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one").write_bytes(bytes(1000))
    (tmp_path / "two").write_bytes(bytes(24))
    assert size(tmp_path) == 1024
