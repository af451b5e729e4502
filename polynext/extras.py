"""Optional dependencies, and the commands that install them."""

from importlib.util import find_spec
from pathlib import Path

from polynext.errors import PolyNeXtError

# The modules of each extra in pyproject.toml, without those of the extras that it includes.
EXTRAS = {
    "models": ("safetensors", "timm", "torch", "torchvision", "yaml"),
    "train": ("matplotlib", "scipy", "sklearn", "tensorboard"),
    "segment": ("torchmetrics",),
    "client": ("httpx", "platformdirs", "tenseal"),
    "encrypted": ("scipy", "sklearn"),
    "serve": ("fastapi", "prometheus_client", "uvicorn"),
    "cluster": ("ray",),
    "export": ("onnx", "onnxruntime", "onnxscript", "sklearn"),
    "openvino": ("openvino",),
    "wandb": ("wandb",),
}


class MissingExtraError(PolyNeXtError, ImportError):
    """A package of an extra is not installed."""

    def __init__(self, extra: str, module: str):
        super().__init__(extra, module)

    def __str__(self) -> str:
        extra, module = self.args
        return f"this needs {module}, which is not installed: {install_command(extra)}."


def install_command(extra: str) -> str:
    """The command that adds an extra to this installation: a checkout's, or the package's."""
    root = Path(__file__).resolve().parent.parent
    if (root / "pyproject.toml").is_file():
        return f"pip install -e '{'.' if root == Path.cwd() else root}[{extra}]'"
    return f"pip install 'polynext[{extra}]'"


def require(extra: str, *modules: str) -> None:
    """Raises `MissingExtraError` unless these modules of an extra, by default all, are installed."""
    for module in modules or EXTRAS[extra]:
        if find_spec(module) is None:
            raise MissingExtraError(extra, module)


def missing_extra(module: str | None) -> MissingExtraError | None:
    """The error for a module that could not be imported, if it belongs to an extra."""
    extra = next((extra for extra, modules in EXTRAS.items() if module in modules), None)
    return MissingExtraError(extra, str(module)) if extra else None
