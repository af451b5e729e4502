"""The networks that come with the package, trained, and prepared for encryption when they are first asked for.

They are prepared by the installed version rather than shipped prepared: a plan suits the planner and file formats of
the version that made it, and planning takes seconds, once.
"""

import hashlib
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

from polynext import __version__
from polynext.encrypted.client_spec import VERSION as CLIENT_SPEC_VERSION
from polynext.encrypted.compiler.planner import Limits
from polynext.encrypted.runtime.cost import MEBIBYTE
from polynext.encrypted.runtime.program_file import VERSION as PROGRAM_VERSION
from polynext.encrypted.server import load_client_spec, load_server
from polynext.errors import PolyNeXtError

if TYPE_CHECKING:
    from polynext.runs import Run

SAMPLES = 10  # pictures that go along, for everybody to try


@dataclass(frozen=True)
class ShippedNetwork:
    """A network in the package, and what its encrypted form may take."""

    name: str
    model: str
    limits: Limits

    @property
    def weights(self) -> Path:
        from polynext.models.published import WEIGHTS

        return WEIGHTS / f"{self.model}.safetensors"

    def load(self) -> "Run":
        from polynext.runs import load_run

        return load_run(self.weights)


# Few keys, at the price of more rotations: a browser sends half of their size, which is to be below 60 MB. Logits off
# by two thousandths change no prediction, and answers come in half of the time that a thousandth takes.
DIGITS = ShippedNetwork("digits", "cpolynext_nano_bn.digits", Limits(keys=100 * MEBIBYTE, error=2e-3))
CIFAR10 = ShippedNetwork(
    "cifar10",
    "cpolynext_cipher_bn.cifar10",
    Limits(memory=8192 * MEBIBYTE, keys=1024 * MEBIBYTE, ring_degrees=(2**15,), error=1e-2),
)


def find_shipped(name: str) -> ShippedNetwork | None:
    """The network of the package that is called so, unless something on the disk is."""
    return None if Path(name).exists() else {each.name: each for each in (DIGITS, CIFAR10)}.get(name)


def shipped_server(chosen: ShippedNetwork = DIGITS) -> Path:
    """The server's folder of an embedded network. The first call takes seconds, later ones find it in a cache."""
    made_from = hashlib.sha256(chosen.weights.read_bytes() + repr(asdict(chosen.limits)).encode()).hexdigest()[:8]
    made_by = f"{__version__}-{made_from}-{CLIENT_SPEC_VERSION}.{PROGRAM_VERSION}"
    folder = platformdirs.user_cache_path("polynext") / "prepared" / made_by / chosen.name
    try:
        load_server(folder, load_client_spec(folder))
    except PolyNeXtError:
        prepare_into(folder, chosen)
    return folder


def prepare_into(folder: Path, chosen: ShippedNetwork) -> None:
    """Makes the folder beside its place and then moves it there: others may be doing the same."""
    from polynext.encrypted.compiler.prepare import prepare

    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as beside:
        made = Path(beside) / folder.name
        prepare(chosen.load(), made, limits=chosen.limits, samples=SAMPLES)
        shutil.rmtree(folder, ignore_errors=True)
        try:
            made.replace(folder)
        except OSError:
            if not folder.is_dir():
                raise
