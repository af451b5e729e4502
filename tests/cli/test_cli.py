"""The command line: what it prints, what it returns, how it fails."""

import inspect
import json
import os
import re
import subprocess
import sys
import types
import typing
from dataclasses import replace

import numpy as np
import pytest
import tyro
import yaml
from PIL import Image

from polynext.cli import COMMANDS, main
from polynext.cli.commands import Commands
from polynext.cli.completion import words
from polynext.cli.encrypted.server import server_folder
from polynext.cli.models import FILE, summarise
from polynext.cli.train import with_fitting_schedule
from polynext.models import list_models
from polynext.recipes import recipe
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


def test_models_fit_a_terminal_and_show_weights_with_accuracy_and_licence(capsys) -> None:
    assert main(["models"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 120
    assert re.search(r"^cpolynext_nano_bn .* digits +98\.9  apache-2\.0$", text, re.M)
    assert re.search(r"^cpolynext_small .* in1k +83\.9  apache-2\.0$", text, re.M)
    assert re.search(r"^ +svhn +98\.1  apache-2\.0$", text, re.M)


def test_the_shipped_counts_are_those_of_the_models() -> None:
    """The names of all models, and all counts of the fast ones; counting the others takes ten seconds."""
    shipped = json.loads(FILE.read_text())
    assert [model["name"] for model in shipped] == list_models(), "run `python -m polynext.cli.models`"
    small = [model for model in shipped if model["input_size"][-1] < 100]
    assert small == [summarise(model["name"]) for model in small], "run `python -m polynext.cli.models`"


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
    assert [row.split()[-6:] for row in rows] == [
        ["activation-free", "73", "2^68", "-", "77.0", "-"],
        ["activation-free", "77", "2^72", "-", "81.3", "-"],
        ["polynomial", "73", "2^68", "-", "77.7", "-"],
        ["polynomial", "77", "2^72", "-", "-", "-"],
    ]
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


@pytest.mark.parametrize("command", ["train cpolynext_lowres_svhn", "evaluate digits --data svhn"])
def test_a_message_names_an_option_of_its_command(command: str, capsys) -> None:
    assert main(command.split()) == 2
    assert "svhn needs --root: give " in capsys.readouterr().err


@pytest.mark.parametrize("place", [["--data", "folder", "--root", "x"], ["--data.name=folder", "--root=x"]])
def test_training_commands_call_their_data_as_the_others_do(place: list[str], capsys) -> None:
    for command in (["train"], ["segment", "train"]):
        assert main([*command, *place, "--workers", "3", "--print-config"]) == 0
        data = yaml.safe_load(capsys.readouterr().out)["data"]
        assert (data["name"], data["root"], data["workers"]) == ("folder", "x", 3)


def functions(commands=COMMANDS, prefix: str = ""):
    """The functions of all commands that have one; the options of the others are the fields of a config."""
    for name, command in commands.items():
        target = command.target()
        if isinstance(target, Commands):
            yield from functions(target.commands, f"{name} ")
        elif inspect.isfunction(target):
            yield prefix + name, target


def test_an_option_takes_the_same_in_every_command() -> None:
    """A count is not a file elsewhere. --data of `reproduce` has several names, with their roots."""
    found: dict[str, dict[str, str]] = {}
    for command, function in functions():
        for name, parameter in inspect.signature(function).parameters.items():
            annotated = typing.get_origin(parameter.annotation) is typing.Annotated
            kind, *notes = typing.get_args(parameter.annotation) if annotated else [parameter.annotation]
            if tyro.conf.Positional not in notes and (command, name) != ("reproduce", "data"):
                kinds = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
                found.setdefault(name, {})[command] = "|".join(sorted(str(k) for k in kinds if k is not types.NoneType))
    assert len(found["out"]) > 5
    assert found["widths"] == {"encrypted design": "tuple[int, ...]"}
    assert not {name: kinds for name, kinds in found.items() if len(set(kinds.values())) > 1}


@pytest.mark.parametrize("network", ["digits", "cpolynext_nano_bn.digits"])
def test_shipped_networks_work_in_every_command(network: str, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Image.new("L", (8, 8)).save("image.png")
    expected = {
        f"predict {network} image.png": "image.png: ",
        f"evaluate {network}": "98.90",
        f"circuit {network}": "a polynomial of degree 32",
        f"export {network} --format torch --out network.pt2": "largest difference",
        f"bench {network} --rounds 1 --no-memory": "cpolynext_nano_bn.digits",
        f"encrypted plan {network}": "ring degree",
    }
    for command, text in expected.items():
        assert main(command.split()) == 0, command
        assert text in capsys.readouterr().out, command
    assert str(server_folder(network)) == str(server_folder("digits"))


def test_a_misspelt_shipped_network_is_suggested(capsys) -> None:
    assert main(["circuit", "cifar10-dep"]) == 2
    assert "did you mean cifar10-deep" in capsys.readouterr().err


def test_networks_without_weights_are_not_scored(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", "cpolynext_nano", "--data", "digits"]) == 2
    assert "cpolynext_nano has no trained weights: give --checkpoint, --pretrained" in capsys.readouterr().err
    assert main(["export", "cpolynext_nano", "--format", "torch"]) == 0
    assert "has no trained weights" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--root /nowhere", "--root is /nowhere, and digits is part of the package: leave --root out"),
        ("--data cifar10-sample", "cifar10-sample has the classes airplane, automobile, bird"),
    ],
)
def test_data_that_cannot_be_meant_is_refused(options: str, message: str, capsys) -> None:
    assert main(["evaluate", "digits", *options.split()]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("data", ["cifar10", "svhn", "svhn-c"])
def test_digits_are_refused_for_a_network_of_photographs(data: str, tmp_path, capsys) -> None:
    np.savez(tmp_path / "digits.npz", test_x=np.zeros((10, 8, 8), np.uint8), test_y=np.arange(10))
    assert main(["evaluate", "cifar10", "--data", data, "--root", str(tmp_path / "digits.npz")]) == 2
    error = capsys.readouterr().err
    assert "airplane, automobile, bird" in error and "evaluate it on data with its classes" in error


def test_the_schedule_of_a_recipe_shrinks_only_with_its_epochs(capsys) -> None:
    short = replace(recipe("digits"), epochs=1)
    assert with_fitting_schedule(short, short) == short
    assert not capsys.readouterr().err
    assert with_fitting_schedule(short, recipe("digits")).schedule.warmup_epochs == 0
    assert "for 1 of 60 epochs, the warmup is 0" in capsys.readouterr().err


def test_short_runs_and_small_batches_need_no_further_options(tmp_path, capsys) -> None:
    small = ["--epochs", "1", "--batch-size", "16", "--data.limit", "64", "--out", str(tmp_path / "run")]
    assert main(["train", *small]) == 0
    captured = capsys.readouterr()
    assert "best test accuracy" in captured.out
    assert "for 1 of 60 epochs, the warmup is 0" in captured.err


def test_help_needs_no_torch(capsys) -> None:
    """Importing it takes seconds. All commands are tried in one process."""
    names = [name for name in words(COMMANDS) if name not in ("segment", "encrypted")]
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
