"""The command line: what it prints, what it returns, how it fails."""

import json
import os
import subprocess
import sys

import pytest

from polynext.cli import COMMANDS, main
from polynext.cli.completion import words
from polynext.threads import idle_threads_give_way


def test_models_table(capsys) -> None:
    assert main(["models", "*nano*"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == [
        "cpolynext_nano",
        "apolynext_nano",
        "cpolynext_nano_bn",
        "apolynext_nano_bn",
    ]
    assert "fully polynomial" in lines[-1]


def test_models_as_json(capsys) -> None:
    assert main(["models", "cpolynext_tiny*", "--json"]) == 0
    tiny, tiny_bn = json.loads(capsys.readouterr().out)
    assert tiny["parameters"] == 6_431_752
    assert tiny["published_top1"] == {"imagenet": 80.2}
    assert tiny_bn["fully_polynomial"]
    assert tiny["layers"] == 77
    assert tiny["log2_degree"] == 73


def test_prior_models_have_a_degree_and_dropin_models_have_none(capsys) -> None:
    assert main(["models", "monet*"]) == 0
    rows = capsys.readouterr().out.splitlines()[2:]
    assert [row.split()[0] for row in rows] == ["monet_tiny", "monet_small", "monet_tiny_bn", "monet_small_bn"]
    assert [row.split()[-3:] for row in rows[:2]] == [
        ["activation-free", "73", "2^68"],
        ["activation-free", "77", "2^72"],
    ]
    assert [row.split()[-3:] for row in rows[2:]] == [["polynomial", "73", "2^68"], ["polynomial", "77", "2^72"]]
    assert main(["models", "caformer*", "--json"]) == 0
    (caformer,) = json.loads(capsys.readouterr().out)
    assert caformer["kind"] == "polynomial mixers" and not caformer["fully_polynomial"]
    assert caformer["layers"] is caformer["log2_degree"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["models", "resnet*"], "polynext models: no model matches 'resnet*'"),
        (["fly"], "polynext: there is no command 'fly'"),
        (["convert", "absent.pt", "out.safetensors"], "polynext convert: there is no file absent.pt"),
        (["convert", "absent.pt", "out.pt"], "polynext convert: the target is out.pt"),
    ],
)
def test_a_mistake_gets_one_message(arguments: list[str], message: str, capsys) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(message)
    assert error.count("\n") == 1


def test_help_lists_every_command(capsys) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(command in text for command in COMMANDS)


def test_runs_as_a_module() -> None:
    result = subprocess.run([sys.executable, "-m", "polynext", "--version"], capture_output=True, text=True, check=True)
    assert result.stdout.strip()


@pytest.mark.parametrize(("set_by_the_user", "expected"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_idle_threads_give_way_unless_the_user_says_otherwise(monkeypatch, set_by_the_user, expected) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if set_by_the_user:
        monkeypatch.setenv("OMP_WAIT_POLICY", set_by_the_user)
    with idle_threads_give_way():
        assert os.environ["OMP_WAIT_POLICY"] == expected
    assert os.environ.get("OMP_WAIT_POLICY") == set_by_the_user


@pytest.mark.parametrize(
    ("command", "option"),
    [("train cpolynext_lowres_svhn", "--data.root"), ("evaluate cpolynext_nano --data svhn", "--root")],
)
def test_a_message_names_the_options_of_its_command(command: str, option: str, capsys) -> None:
    assert main(command.split()) == 2
    assert f"svhn needs {option}: give " in capsys.readouterr().err


# Their settings import the planner.
SLOW_HELP = {"encrypted design", "encrypted fit"}


def test_help_needs_no_torch(capsys) -> None:
    """Importing it takes seconds. All commands are tried in one process."""
    names = [name for name in words(COMMANDS) if name not in SLOW_HELP | {"segment", "encrypted"}]
    code = f"""
import contextlib, io, sys
from polynext.cli import main
for name in {names!r}:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main([*name.split(), "--help"])
    assert not {{"torch", "timm"}} & sys.modules.keys(), name
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
