"""What is installed only if asked for, and how to ask."""

from importlib.util import find_spec

from polynext.errors import PolyNeXtError

# The extras of the package, and the modules that each brings.
EXTRAS = {
    "train": ("matplotlib", "scipy", "sklearn", "tensorboard", "tqdm", "tyro", "yaml"),
    "segment": ("torchmetrics",),
    "encrypted": ("httpx", "platformdirs", "scipy", "tenseal", "tyro"),
    "serve": ("fastapi", "prometheus_client", "sklearn", "uvicorn", "zstandard"),
    "cluster": ("ray",),
    "export": ("onnx", "onnxruntime", "onnxscript", "sklearn"),
    "openvino": ("openvino",),
    "wandb": ("wandb",),
}


class MissingExtraError(PolyNeXtError, ImportError):
    """Something was asked for whose packages are not installed."""

    def __init__(self, extra: str, module: str):
        super().__init__(f"this needs {module}, which is not installed: pip install 'polynext[{extra}]'.")


def require(extra: str, *modules: str) -> None:
    """Raises unless these modules of an extra, or all of it, are there."""
    for module in modules or EXTRAS[extra]:
        if find_spec(module) is None:
            raise MissingExtraError(extra, module)


def missing_extra(module: str | None) -> MissingExtraError | None:
    """The sentence for a module that could not be imported, if an extra brings it."""
    extra = next((extra for extra, modules in EXTRAS.items() if module in modules), None)
    return MissingExtraError(extra, str(module)) if extra else None
