"""Shell completion, run by a real shell."""

import shutil
import subprocess
from pathlib import Path

import pytest

from polynext.cli import COMMANDS
from polynext.cli.completion import completion, words
from polynext.errors import PolyNeXtError

# The groups without those whose help imports much.
FEW = {name: COMMANDS[name] for name in ("predict", "models", "encrypted")}


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "polynext.bash"
    path.write_text(completion("bash", FEW))
    return path


def completed(script: Path, line: str) -> list[str]:
    """What bash offers for a line whose last word is incomplete."""
    typed = line.split(" ")
    code = (
        f"source {script}; COMP_WORDS=({' '.join(repr(word) for word in typed)}); COMP_CWORD={len(typed) - 1}; "
        '_polynext; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    return subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("polynext pre", ["predict"]),
        ("polynext --v", ["--version"]),
        ("polynext encrypted ke", ["keygen"]),
        ("polynext encrypted serve --key", ["--key-sets", "--key-memory", "--key-days"]),
        ("polynext predict runs/digits --t", ["--top"]),
        ("polynext predict ", []),  # files, which bash completes by itself
    ],
)
def test_bash_completes_commands_and_options(script: Path, line: str, expected: list[str]) -> None:
    assert completed(script, line) == expected


def test_every_command_has_words() -> None:
    found = words(FEW)
    assert set(found) >= {"predict", "models", "encrypted", "encrypted serve", "encrypted ask"}
    assert all("--help" in each for name, each in found.items() if name != "encrypted")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_the_same_words(shell: str) -> None:
    text = completion(shell, FEW)
    assert "keygen" in text and "key-memory" in text


def test_an_unknown_shell_is_refused() -> None:
    with pytest.raises(PolyNeXtError, match="there is no completion for 'tcsh'"):
        completion("tcsh", FEW)
