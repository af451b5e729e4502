"""The command line: `polynext COMMAND`. One file per command; each is imported only when it is called."""

import importlib
import sys
from collections.abc import Sequence

from polynext.errors import PolyNeXtError

COMMANDS = {
    "train": "train a network by a recipe; the embedded digits without arguments",
    "evaluate": "measure a network on a data set, beside the paper's figure",
    "predict": "tell what is in images",
    "models": "list the models: size, cost, accuracy, depth and polynomial degree",
    "bench": "measure speed and memory of networks side by side",
    "export": "write a network as ONNX or a torch.export program, and check it",
    "ablate": "train the rows of the paper's ablation tables and compare them",
    "segment": "train, evaluate and use a segmentation network",
    "circuit": "show a fully polynomial model as an arithmetic circuit",
    "encrypted": "run a fully polynomial model on encrypted images",
    "convert": "turn a published checkpoint into a safetensors file",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status: 0 if it did what was asked, 2 for a mistake in what was asked."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0
    if arguments[0] == "--version":
        from polynext import __version__

        print(__version__)
        return 0
    command, *rest = arguments
    if command not in COMMANDS:
        print(f"polynext: there is no command {command!r}: choose one of {', '.join(COMMANDS)}.", file=sys.stderr)
        return 2
    import tyro

    from polynext.memory import keep_freed_memory

    keep_freed_memory()
    module = importlib.import_module(f"polynext.cli.{command}")
    try:
        if hasattr(module, "run"):  # a command that reads its arguments itself and returns a status
            return module.run(rest)
        tyro.cli(module.main, prog=f"polynext {command}", args=rest)
    except PolyNeXtError as error:
        print(f"polynext {command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # somebody read as much as they wanted, as `| head` does
        sys.stderr.close()
    except OSError as error:
        print(f"polynext {command}: {error.filename or 'the system'}: {error.strerror or error}.", file=sys.stderr)
        return 2
    return 0


def usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {purpose}" for name, purpose in COMMANDS.items()]
    return "\n".join(
        [
            "usage: polynext COMMAND [OPTIONS]",
            "",
            "Activation-free vision backbones: train them, measure them, run them on encrypted images.",
            "",
            *lines,
            "",
            "polynext COMMAND --help tells what a command takes.",
        ]
    )
