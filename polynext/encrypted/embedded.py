"""The network that comes with the package: trained on the digits, and prepared when it is first asked for.

It is prepared by the installed version rather than shipped prepared: a plan suits the planner and file formats of the
version that made it, and planning takes seconds, once.
"""

import hashlib
import shutil
import tempfile
from pathlib import Path

import platformdirs

from polynext import __version__
from polynext.encrypted.offer import VERSION as OFFER_VERSION
from polynext.encrypted.planner import MEBIBYTE, Limits
from polynext.encrypted.program_file import VERSION as PROGRAM_VERSION
from polynext.encrypted.server import load_offer, load_server
from polynext.errors import PolyNeXtError

NAME = "digits"
WEIGHTS = Path(__file__).parents[1] / "models" / "weights" / "cpolynext_nano_bn.digits.safetensors"
# Few keys, at the price of more rotations: a browser sends half of their size, which is to be below 60 MB.
LIMITS = Limits(keys=100 * MEBIBYTE)
SAMPLES = 10


def embedded_server() -> Path:
    """The server's folder of the embedded network. The first call takes seconds, later ones find it in a cache."""
    digest = hashlib.sha256(WEIGHTS.read_bytes()).hexdigest()[:8]
    made_by = f"{__version__}-{digest}-{OFFER_VERSION}.{PROGRAM_VERSION}-{LIMITS.keys // MEBIBYTE}"
    folder = platformdirs.user_cache_path("polynext") / "prepared" / made_by / NAME
    try:
        load_server(folder, load_offer(folder))
    except PolyNeXtError:
        prepare_into(folder)
    return folder


def prepare_into(folder: Path) -> None:
    """Makes the folder beside its place and then moves it there: others may be doing the same."""
    from polynext.encrypted.prepare import prepare
    from polynext.runs import load_run

    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as beside:
        prepare(load_run(WEIGHTS), Path(beside) / NAME, limits=LIMITS, samples=SAMPLES)
        shutil.rmtree(folder, ignore_errors=True)
        try:
            (Path(beside) / NAME).replace(folder)
        except OSError:
            if not folder.is_dir():
                raise
