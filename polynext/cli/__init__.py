"""The command line: `polynext COMMAND`. One thin file per command; what it calls can be called from Python."""

import sys
from collections.abc import Sequence

from polynext.cli.commands import Command, Commands
from polynext.cli.sentences import with_options
from polynext.errors import PolyNeXtError
from polynext.extras import missing_extra
from polynext.memory import keep_freed_memory
from polynext.threads import idle_threads_give_way

COMMANDS = {
    "train": Command(
        "train a network by a recipe; the embedded digits without arguments", "polynext.cli.train:training"
    ),
    "evaluate": Command("measure a network on a data set, beside the paper's figure", "polynext.cli.evaluate:main"),
    "predict": Command("tell what is in images", "polynext.cli.predict:main"),
    "models": Command("list the models: size, cost, accuracy, depth and polynomial degree", "polynext.cli.models:main"),
    "bench": Command("measure speed and memory of networks side by side", "polynext.cli.bench:main"),
    "export": Command("write a network as ONNX or a torch.export program, and check it", "polynext.cli.export:main"),
    "ablate": Command("train the rows of the paper's ablation tables and compare them", "polynext.cli.ablate:main"),
    "reproduce": Command(
        "run what a table of the paper takes, with its figures beside ours", "polynext.cli.reproduce:main"
    ),
    "segment": Command("train, evaluate and use a segmentation network", "polynext.cli.segment:commands"),
    "circuit": Command("show a fully polynomial model as an arithmetic circuit", "polynext.cli.circuit:main"),
    "encrypted": Command("run a fully polynomial model on encrypted images", "polynext.cli.encrypted:commands"),
    "convert": Command("turn a published checkpoint into a safetensors file", "polynext.cli.convert:main"),
}
PURPOSE = "Activation-free vision backbones: train them, measure them, run them on encrypted images."


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status: 0 if it did what was asked, 2 for a mistake in what was asked."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments == ["--version"]:
        from polynext import __version__

        print(__version__)
        return 0
    name = " ".join(["polynext", *arguments[:1]])
    try:
        keep_freed_memory()
        with idle_threads_give_way():
            return Commands("polynext", PURPOSE, COMMANDS).run(arguments)
    except PolyNeXtError as error:
        print(f"{name}: {with_options(str(error), by_config='train' in arguments[:2])}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        sentence = missing_extra(error.name)
        if sentence is None:
            raise
        print(f"{name}: {sentence}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # somebody read as much as they wanted, as `| head` does
        sys.stderr.close()
        return 0
    except OSError as error:
        print(f"{name}: {error.filename or 'the system'}: {error.strerror or error}.", file=sys.stderr)
        return 2
