"""What `pip install polynext` alone can do, what it says of the rest, and what is written down of versions."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from polynext.extras import EXTRAS

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# Makes the modules of all extras as absent as if they were not installed, but for two that timm needs itself.
BLOCKER = f"""
import sys
from importlib.abc import MetaPathFinder
class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {sorted({m for modules in EXTRAS.values() for m in modules} - {"tqdm", "yaml"})}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
import importlib.util
real = importlib.util.find_spec
def find_spec(name, package=None):
    try:
        return real(name, package)
    except ModuleNotFoundError:
        return None
importlib.util.find_spec = find_spec
"""


def without_extras(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", BLOCKER + code], capture_output=True, text=True, check=False)


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
print("all there")
"""


def test_the_core_needs_no_extra() -> None:
    result = without_extras(CORE)
    assert result.stdout.strip() == "all there", result.stderr


NEEDS = {
    "import polynext.training": "train",
    "import polynext; polynext.load_run": "train",
    "import polynext.evaluation": "train",
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


def test_a_missing_extra_is_a_sentence_with_its_cure() -> None:
    sentences = without_extras(f"codes = {list(NEEDS)!r}{TRY_ALL}").stdout.splitlines()
    for sentence, (code, extra) in zip(sentences, NEEDS.items(), strict=True):
        cure = rf"this needs \w+, which is not installed: pip install 'polynext\[{extra}\]'\."
        assert re.fullmatch(cure, sentence), f"{code}: {sentence}"


def test_a_command_says_it_in_one_line() -> None:
    commands = ["train", "models", "evaluate cpolynext_nano", "segment train", "encrypted plan x"]
    calls = "; ".join(f"print(main({command.split()!r}))" for command in commands)
    result = without_extras(f"from polynext.cli import main; {calls}")
    assert result.stdout.split() == ["2"] * len(commands)
    lines = result.stderr.splitlines()
    assert len(lines) == len(commands) and all("pip install 'polynext[" in line for line in lines), lines


def test_help_needs_no_extra() -> None:
    assert "encrypted" in without_extras("from polynext.cli import main; main(['--help'])").stdout


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
    modules = {"scikit-learn": "sklearn", "pyyaml": "yaml", "prometheus-client": "prometheus_client"}
    for extra, brought in EXTRAS.items():
        listed = names(PROJECT["optional-dependencies"][extra]) - {"polynext"}
        assert {modules.get(name, name) for name in listed} == set(brought), extra
