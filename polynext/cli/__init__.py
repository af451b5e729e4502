"""The command line, `polynext COMMAND`: a thin file for each command, over functions of the package."""

import sys
from collections.abc import Sequence

from polynext.cli.commands import FORMER_TRAINING, Command, Commands, with_options
from polynext.errors import PolyNeXtError
from polynext.extras import missing_extra
from polynext.memory import keep_freed_memory
from polynext.threads import idle_threads_give_way

COMMANDS = {
    "train": Command(
        "train a network by a recipe; by default on handwritten digits", "polynext.cli.train:training", FORMER_TRAINING
    ),
    "evaluate": Command("measure the accuracy of a network, beside that in the paper", "polynext.cli.evaluate:main"),
    "predict": Command("classify images", "polynext.cli.predict:main"),
    "models": Command("list the models: size, cost, accuracy, depth and polynomial degree", "polynext.cli.models:main"),
    "bench": Command("compare the speed and memory of networks", "polynext.cli.bench:main"),
    "export": Command(
        "export a network to ONNX or torch.export, and check the file",
        "polynext.cli.export:main",
        {"--images": "--check-images"},
    ),
    "ablate": Command("train and compare the rows of the paper's ablation tables", "polynext.cli.ablate:main"),
    "reproduce": Command("reproduce a table of the paper, beside its published numbers", "polynext.cli.reproduce:main"),
    "segment": Command("train, evaluate and use a segmentation network", "polynext.cli.segment:commands"),
    "circuit": Command("show a fully polynomial model as an arithmetic circuit", "polynext.cli.circuit:main"),
    "encrypted": Command("run a fully polynomial model on encrypted images", "polynext.cli.encrypted:commands"),
    "convert": Command("convert a published checkpoint to a safetensors file", "polynext.cli.convert:main"),
    "info": Command("show versions, devices, engines and caches, for a bug report", "polynext.cli.info:main"),
}
PURPOSE = "Activation-free vision backbones: train them, measure them, run them on encrypted images."


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status: 0 for success, 2 for a mistake in the arguments."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments == ["--version"]:
        from polynext import __version__

        print(__version__)
        return 0
    name = " ".join(["polynext", *arguments[:1]])
    try:
        if arguments[:1] == ["--completion"]:
            from polynext.cli.completion import completion

            print(completion(" ".join(arguments[1:]), COMMANDS))
            return 0
        keep_freed_memory()
        with idle_threads_give_way():
            return Commands("polynext", PURPOSE, COMMANDS).run(arguments)
    except PolyNeXtError as error:
        print(f"{name}: {with_options(str(error))}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        missing = missing_extra(error.name)
        if missing is None:
            raise
        print(f"{name}: {missing}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader has closed its end, as `| head` does
        sys.stderr.close()
        return 0
    except OSError as error:
        print(f"{name}: {error.filename or 'the system'}: {error.strerror or error}.", file=sys.stderr)
        return 2
