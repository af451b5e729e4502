"""`polynext --completion SHELL`: a script that completes commands and options in bash, zsh or fish."""

import contextlib
import io
import re
from collections.abc import Mapping

from polynext.cli.commands import Command, Commands
from polynext.errors import PolyNeXtError, suggest

Words = dict[str, list[str]]  # by the words of a command: its subcommands or its options


def completion(shell: str, commands: Mapping[str, Command]) -> str:
    """The script for a shell. Options are read from each command's help, which takes some seconds."""
    if shell not in SHELLS:
        raise PolyNeXtError(
            f"there is no completion for {shell!r}: {suggest(shell, SHELLS, 'choose bash, zsh or fish.')}"
        )
    return SHELLS[shell]({"": [*commands, "--completion", "--help", "--version"], **words(commands)})


def words(commands: Mapping[str, Command], prefix: str = "") -> Words:
    """The subcommands and options of these commands."""
    found: Words = {}
    for name, command in commands.items():
        target = command.target()
        if isinstance(target, Commands):
            found[prefix + name] = list(target.commands)
            found |= words(target.commands, f"{prefix}{name} ")
        else:
            found[prefix + name] = options(command, f"polynext {prefix}{name}")
    return found


def options(command: Command, name: str) -> list[str]:
    """The options in a command's help."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        command.run(name, ["--help"])
    # An option begins its line, in a frame or not; the second name of a pair of flags follows a comma.
    lines = re.findall(r"^[│ ] {1,2}((?:-h, )?--[^ ].*)$", text.getvalue(), flags=re.MULTILINE)
    return [name for line in lines for name in re.findall(r"--[a-z][\w.-]*", line.split("  ")[0])]


def bash(found: Words) -> str:
    names = "|".join(f'"{name}"' for name in found if name)
    cases = "\n".join(f'        "{name}") words="{" ".join(each)}" ;;' for name, each in found.items() if name)
    return f"""# polynext completion: add `source <(polynext --completion bash)` to ~/.bashrc
_polynext() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" command="" words="{" ".join(found[""])}" position longer
    for ((position = 1; position <= 2 && position < COMP_CWORD; position++)); do
        longer="${{command:+$command }}${{COMP_WORDS[position]}}"
        case "$longer" in {names}) command="$longer" ;; esac
    done
    case "$command" in
{cases}
    esac
    COMPREPLY=()
    if [[ "$current" == -* || "$words" != -* ]]; then COMPREPLY=($(compgen -W "$words" -- "$current")); fi
}}
complete -o default -F _polynext polynext"""


def zsh(found: Words) -> str:
    return "\n".join(
        [
            "# polynext completion: add `source <(polynext --completion zsh)` to ~/.zshrc",
            "autoload -U +X bashcompinit && bashcompinit",
            bash(found).split("\n", 1)[1],
        ]
    )


def fish(found: Words) -> str:
    lines = ["# polynext completion: `polynext --completion fish > ~/.config/fish/completions/polynext.fish`"]
    for name, each in found.items():
        seen = " ".join(f"; and __fish_seen_subcommand_from {word}" for word in name.split())
        condition = f"true{seen}" if name else "__fish_use_subcommand"
        for word in each:
            what = f"-l {word.removeprefix('--')}" if word.startswith("--") else f"-f -a {word}"
            lines.append(f"complete -c polynext -n '{condition}' {what}")
    return "\n".join(lines)


SHELLS = {"bash": bash, "zsh": zsh, "fish": fish}
