"""What each extra can do with only its own packages installed, and what is written down of versions."""

import importlib.metadata
import os
import pickle
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from PIL import Image

from polynext import extras
from polynext.cli import main
from polynext.extras import EXTRAS, MissingExtraError, install_command

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# Hides all distributions but the allowed ones and their modules, in this process and those that it starts.
SITECUSTOMIZE = """
import sys
from importlib.machinery import PathFinder

class OnlyAllowed(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in HIDDEN else super().find_spec(name, path, target)

    @staticmethod
    def find_distributions(*context):
        found = PathFinder.find_distributions(*context)
        return (one for one in found if one.name.lower().replace("_", "-").replace(".", "-") in ALLOWED)

sys.meta_path[sys.meta_path.index(PathFinder)] = OnlyAllowed
"""


def distributions_of(*chosen: str) -> set[str]:
    """The distributions that `pip install polynext[...]` installs, with all that they depend on."""
    found: set[str] = set()
    requirements = [Requirement(line) for line in PROJECT["dependencies"]]
    requirements += [Requirement(line) for extra in chosen for line in PROJECT["optional-dependencies"][extra]]
    while requirements:
        one = requirements.pop()
        name = canonicalize_name(one.name)
        if name == "polynext":
            lines = [line for extra in one.extras for line in PROJECT["optional-dependencies"][extra]]
            requirements += map(Requirement, lines)
        elif name not in found:
            found.add(name)
            needed = map(Requirement, importlib.metadata.requires(name) or [])
            requirements += [r for r in needed if r.marker is None or r.marker.evaluate({"extra": ""})]
    return found


def sitecustomize(*chosen: str) -> str:
    allowed = distributions_of(*chosen) | {"polynext", "setuptools"}
    installed = importlib.metadata.packages_distributions()
    hidden = {m for m, names in installed.items() if not allowed & {canonicalize_name(name) for name in names}}
    return f"ALLOWED, HIDDEN = {allowed!r}, {hidden!r}\n{SITECUSTOMIZE}"


@pytest.fixture(scope="session")
def installations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("installations")


def run(installations: Path, chosen: str, *arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Python with only the packages of the base and of an extra, or of the base if it is empty."""
    folder = installations / (chosen or "base")
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(sitecustomize(*([chosen] if chosen else [])))
    environment = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "XDG_CACHE_HOME": str(installations)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=cwd, timeout=600)


def run_commands(installations: Path, chosen: str, expected: dict[str, str], cwd: Path) -> None:
    """Runs commands in one process; each must succeed and print what is expected of it."""
    calls = "\n".join(f"print('$'); assert main({command.split()!r}) == 0" for command in expected)
    result = run(installations, chosen, "-c", f"from polynext.cli import main\n{calls}", cwd=cwd)
    assert result.returncode == 0, result.stderr
    for printed, wanted in zip(result.stdout.split("$\n")[1:], expected.values(), strict=True):
        assert wanted in printed


CORE = """
import timm, torch
import polynext
from PIL import Image

model = timm.create_model("cpolynext_nano", num_classes=3).eval()
assert model(torch.zeros(1, 1, 8, 8)).shape == (1, 3)
assert polynext.fold(polynext.create_model("cpolynext_nano_bn"))(torch.zeros(1, 1, 8, 8)).shape == (1, 10)
assert len(timm.create_model("cpolynext_micro", features_only=True)(torch.zeros(1, 3, 32, 32))) == 3
assert polynext.Preprocessing()(Image.new("RGB", (9, 9))).shape == (1, 8, 8)
assert polynext.nn.PolyConv(4)(torch.zeros(1, 4, 8, 8)).shape == (1, 4, 8, 8)
assert "cpolynext_small" in polynext.list_models()
polynext.replace_mixers(timm.create_model("convformer_s18", device="meta"), mlp=None)
polynext.data.training_transform
polynext.recipes.recipe("cpolynext_small")
run = polynext.load_run("cpolynext_nano_bn", pretrained=True)
assert len(run.classify(Image.new("L", (8, 8)))) == 10
print("all there")
"""


def test_models_are_built_loaded_and_used(installations: Path) -> None:
    result = run(installations, "models", "-c", CORE)
    assert result.stdout.strip() == "all there", result.stderr


def test_commands_of_models(installations: Path, tmp_path: Path) -> None:
    Image.new("L", (8, 8)).save(tmp_path / "image.png")
    images = np.zeros((20, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(20) % 10
    np.savez(tmp_path / "data.npz", train_x=images, train_y=labels, test_x=images, test_y=labels)
    expected = {
        "models *nano*": "cpolynext_nano",
        "predict cpolynext_nano_bn image.png --pretrained": "image.png: ",
        "evaluate cpolynext_cipher_bn --pretrained": "cpolynext_cipher_bn.cifar10",
        "evaluate cifar10 --data folder --root data.npz": "top-1 (%)",
        "export cpolynext_nano_bn --pretrained --format torch --check-images image.png": ".pt2",
    }
    run_commands(installations, "models", expected, tmp_path)


def test_commands_of_train(installations: Path, tmp_path: Path) -> None:
    expected = {
        "train digits --epochs 1 --schedule.warmup-epochs 0 --data.limit 128 --out run": "best test accuracy",
        "evaluate run": "top-1 (%)",
        "evaluate run --data digits-c": "error (%) at severity",
        "ablate --list": "polyconv",
    }
    run_commands(installations, "train", expected, tmp_path)


def test_the_base_explains_itself(installations: Path, tmp_path: Path) -> None:
    run_commands(installations, "", {"--help": "encrypted", "info": "missing"}, tmp_path)


@pytest.fixture(scope="session")
def digits_server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared") / "digits"
    assert main(["encrypted", "prepare", "digits", "--out", str(folder)]) == 0
    return folder


def test_a_client_needs_no_torch(installations: Path, digits_server: Path, tmp_path: Path, monkeypatch) -> None:
    assert "torch" not in distributions_of("client")
    Image.new("L", (8, 8), 30).save(tmp_path / "image.png")
    expected = {
        f"encrypted keygen {digits_server / 'client_spec.json'}": "secret.key",
        "encrypted encrypt image.png": "1 images",
    }
    run_commands(installations, "client", expected, tmp_path)
    monkeypatch.chdir(tmp_path)
    assert (
        main(["encrypted", "run", "request.enc", "--server", str(digits_server), "--keys", "client/evaluation.keys"])
        == 0
    )
    run_commands(installations, "client", {"encrypted decrypt answer.enc": "logit"}, tmp_path)
    refused = run(
        installations, "client", "-m", "polynext", "encrypted", "ask", "http://localhost:1", "image.png", cwd=tmp_path
    )
    assert refused.returncode == 2 and "localhost:1" in refused.stderr and "pip install" not in refused.stderr


def test_a_client_is_small() -> None:
    """With everything that it depends on. numpy, Pillow and SEAL are nine tenths of it."""
    files = [file for name in distributions_of("client") for file in importlib.metadata.files(name) or []]
    sizes = {
        path: path.stat().st_size
        for file in files
        if (path := Path(str(file.locate()))).is_file() and path.suffix != ".pyc"
    }
    assert sum(sizes.values()) < 110e6


def test_a_prepared_network_is_served_without_torch(installations: Path, digits_server: Path, tmp_path: Path) -> None:
    code = f"""
import sys
from polynext.cli.encrypted.server import server_folder
from polynext.service import create_app, load_networks
print(*load_networks([server_folder({str(digits_server)!r})]))
assert "torch" not in sys.modules
"""
    result = run(installations, "serve", "-c", code)
    assert result.stdout.strip() == "digits", result.stderr


def test_commands_of_encrypted(installations: Path, tmp_path: Path) -> None:
    expected = {
        "encrypted plan digits": "ring degree",
        "encrypted prepare digits --out server": "client_spec.json",
        "encrypted keygen server/client_spec.json": "secret.key",
        "encrypted encrypt --digits 1": "1 images",
        "encrypted run request.enc --keys client/evaluation.keys": "answer.enc",
        "encrypted decrypt answer.enc": "0",
    }
    run_commands(installations, "encrypted", expected, tmp_path)
    ask = ["-m", "polynext", "encrypted", "ask", "http://localhost:1", "--digits", "1"]
    refused = run(installations, "encrypted", *ask)
    assert refused.returncode == 2 and "localhost:1" in refused.stderr and "pip install" not in refused.stderr


def test_commands_of_segment_and_export(installations: Path, tmp_path: Path) -> None:
    run_commands(installations, "segment", {"segment costs cpolynext_tiny": "cpolynext_tiny"}, tmp_path)
    expected = {"export cpolynext_nano_bn --pretrained --out nano.onnx": "nano.onnx"}
    run_commands(installations, "export", expected, tmp_path)


NEEDS_OF_THE_BASE = {
    "import polynext; polynext.create_model": "models",
    "import polynext; polynext.nn": "models",
}
NEEDS = {
    "import polynext.training": "train",
    "from polynext.evaluation import corrupt; import numpy as np; corrupt(np.zeros((8, 8), np.uint8), 'fog', 1); "
    "corrupt(np.zeros((8, 8), np.uint8), 'defocus_blur', 1)": "train",
    "import polynext.experiments.ablation": "train",
    "import polynext.experiments.architectures": "train",
    "import polynext.segmentation": "segment",
    "from polynext.circuit import lower": "encrypted",
    "from polynext.encrypted import make_plan": "encrypted",
    "import polynext.service": "serve",
    "from polynext.export import onnx_session; onnx_session(None)": "export",
    "from polynext.data import DataConfig, load_examples; load_examples(DataConfig(), 'test')": "train",
}
TRY_ALL = """
for code in codes:
    try:
        exec(code)
        print("nothing is missing")
    except ImportError as error:
        print(error)
"""


def test_a_missing_extra_is_a_message_with_the_command_that_installs_it(installations: Path) -> None:
    base = run(installations, "", "-c", f"codes = {list(NEEDS_OF_THE_BASE)!r}{TRY_ALL}")
    models = run(installations, "models", "-c", f"codes = {list(NEEDS)!r}{TRY_ALL}")
    messages = [*base.stdout.splitlines(), *models.stdout.splitlines()]
    for message, (code, extra) in zip(messages, (NEEDS_OF_THE_BASE | NEEDS).items(), strict=True):
        assert re.fullmatch(rf"this needs \w+, which is not installed: pip install -e '\.\[{extra}\]'\.", message), code


def test_a_command_reports_it_in_one_line(installations: Path) -> None:
    commands = ["train", "evaluate cpolynext_nano --data digits", "segment train", "encrypted plan digits"]
    calls = "; ".join(f"print(main({command.split()!r}))" for command in commands)
    result = run(installations, "", "-c", f"from polynext.cli import main; {calls}")
    assert result.stdout.split() == ["2"] * len(commands)
    lines = result.stderr.splitlines()
    assert len(lines) == len(commands) and all("pip install -e '.[" in line for line in lines), lines


def test_the_command_is_that_of_the_installation(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert install_command("train") == f"pip install -e '{ROOT}[train]'"
    monkeypatch.setattr(extras, "__file__", str(tmp_path / "site-packages" / "polynext" / "extras.py"))
    assert install_command("train") == "pip install 'polynext[train]'"


def test_the_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(MissingExtraError("train", "tensorboard")))
    assert isinstance(error, MissingExtraError) and str(error) == str(MissingExtraError("train", "tensorboard"))


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=!;~ ]", line)[0].lower().replace("_", "-") for line in requirements}


def test_versions_are_written_down_for_everything_we_ask_for() -> None:
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    pinned = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.+-]+", line) for line in pinned)  # names and versions, no addresses
    extras = PROJECT["optional-dependencies"]
    asked = names([*PROJECT["dependencies"], *(r for extra, rs in extras.items() if extra != "wandb" for r in rs)])
    assert asked - {"polynext"} <= names(pinned)


def test_extras_are_those_of_the_package() -> None:
    assert EXTRAS.keys() <= PROJECT["optional-dependencies"].keys()
    modules = {"scikit-learn": "sklearn", "prometheus-client": "prometheus_client", "pyyaml": "yaml"}
    for extra, brought in EXTRAS.items():
        listed = names(PROJECT["optional-dependencies"][extra]) - {"polynext", "backports-zstd"}  # part of Python 3.14
        assert {modules.get(name, name) for name in listed} == set(brought), extra
