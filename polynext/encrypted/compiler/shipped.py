"""The trained networks that ship with the package. Each is prepared for encryption when it is first used.

They are not shipped prepared, because a plan belongs to the planner and file formats of one version. Preparing the
MNIST network takes seconds and is done once.
"""

import hashlib
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

from polynext import __version__
from polynext.encrypted.client_spec import VERSION as CLIENT_SPEC_VERSION
from polynext.encrypted.runtime.backends import get_backend
from polynext.encrypted.runtime.program_file import VERSION as PROGRAM_VERSION
from polynext.encrypted.server import SAMPLES, load_client_spec, load_server
from polynext.errors import PolyNeXtError

if TYPE_CHECKING:
    from polynext.runs import Run

SAMPLE_COUNT = 10  # public test images in a prepared folder


@dataclass(frozen=True)
class ShippedNetwork:
    """A shipped network. Its weights file has the config of its training run, with the limits of its plan."""

    name: str
    model: str

    @property
    def weights(self) -> Path:
        from polynext.models.published import shipped_weights

        path = shipped_weights(self.model)
        assert path is not None
        return path

    def load(self) -> "Run":
        from polynext.runs import load_run

        return load_run(self.weights)


MNIST = ShippedNetwork("mnist", "cpolynext_mnist_bn.mnist")
DIGITS = ShippedNetwork("digits", "cpolynext_nano_bn.digits")
CIFAR10 = ShippedNetwork("cifar10", "cpolynext_cipher_bn.cifar10")
CIFAR10_DEEP = ShippedNetwork("cifar10-deep", "cpolynext_cipher_deep_bn.cifar10")
SHIPPED = {each.name: each for each in (MNIST, DIGITS, CIFAR10, CIFAR10_DEEP)}


def find_shipped(name: str) -> ShippedNetwork | None:
    """The shipped network of this name, such as mnist or cpolynext_mnist_bn.mnist; None if a file has this name."""
    named = SHIPPED | {each.model: each for each in SHIPPED.values()}
    return None if Path(name).exists() else named.get(name)


def cache_folder(chosen: ShippedNetwork) -> Path:
    """Where a shipped network is prepared. A plan belongs to the planner, formats and engine that it was made with."""
    made_from = hashlib.sha256(chosen.weights.read_bytes()).hexdigest()[:8]
    engine = get_backend("seal").engine.name  # whose costs the plan is made for
    made_by = f"{__version__}-{made_from}-{CLIENT_SPEC_VERSION}.{PROGRAM_VERSION}-{engine}"
    return platformdirs.user_cache_path("polynext") / "prepared" / made_by / chosen.name


def is_prepared(chosen: ShippedNetwork) -> bool:
    """Whether `shipped_server` finds the network in the cache."""
    return cache_folder(chosen).is_dir()


def shipped_server(chosen: ShippedNetwork = MNIST) -> Path:
    """The server's folder of a shipped network. The first call prepares it in a cache, which takes seconds."""
    folder = cache_folder(chosen)
    try:
        load_server(folder, load_client_spec(folder))
    except PolyNeXtError:
        prepare_into(folder, chosen)
    return folder


def prepare_into(folder: Path, chosen: ShippedNetwork) -> None:
    """Prepares the folder under a temporary name and then moves it, because other processes may do the same."""
    from polynext.encrypted.compiler.prepare import prepare, save_samples

    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as beside:
        made = Path(beside) / folder.name
        run = chosen.load()
        prepare(run).save(made)
        save_samples(run, made / SAMPLES, SAMPLE_COUNT)
        shutil.rmtree(folder, ignore_errors=True)
        try:
            made.replace(folder)
        except OSError:
            if not folder.is_dir():
                raise
