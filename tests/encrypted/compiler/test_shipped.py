"""Shipped networks: their weights exist, and they are prepared once."""

from pathlib import Path
from typing import Any

import platformdirs
import pytest

from polynext.encrypted.compiler import prepare as prepare_module
from polynext.encrypted.compiler import shipped
from polynext.encrypted.compiler.shipped import (
    CIFAR10,
    CIFAR10_DEEP,
    DIGITS,
    MNIST,
    SHIPPED,
    ShippedNetwork,
    shipped_server,
)
from polynext.errors import PolyNeXtError
from polynext.models import published
from polynext.recipes import recipe


def test_shipped_weights_are_in_the_package() -> None:
    assert all(network.weights.is_file() for network in SHIPPED.values())
    assert {network.model: name for name, network in SHIPPED.items()} == published.SHIPPED


RECIPES = [(MNIST, "mnist"), (DIGITS, "digits"), (CIFAR10, "cipher"), (CIFAR10_DEEP, "cipher_deep")]


@pytest.mark.parametrize(("network", "name"), RECIPES)
def test_weights_have_the_limits_of_their_recipe(network: ShippedNetwork, name: str) -> None:
    run = network.load()
    assert run.config is not None and run.config.encryption == recipe(name).encryption


def test_a_network_is_prepared_only_if_the_cache_cannot_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = []

    class Prepared:
        def save(self, folder: Path) -> None:
            prepared.append(folder.name)
            folder.mkdir()
            (folder / "program.npz").touch()

    def load_server(folder: Path, spec: Any) -> None:
        if not (folder / "program.npz").is_file():
            raise PolyNeXtError("there is no program")

    monkeypatch.setattr(prepare_module, "prepare", lambda run: Prepared())
    monkeypatch.setattr(prepare_module, "save_samples", lambda *given: None)
    monkeypatch.setattr(shipped, "load_server", load_server)
    monkeypatch.setattr(shipped, "load_client_spec", lambda folder: None)
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: tmp_path / name)
    monkeypatch.setattr(shipped.ShippedNetwork, "load", lambda self: None)
    first, second = shipped_server(), shipped_server()
    assert first == second and first.name == "mnist" and prepared == ["mnist"]
    (first / "program.npz").unlink()  # as if it were damaged
    assert shipped_server() == first and len(prepared) == 2
