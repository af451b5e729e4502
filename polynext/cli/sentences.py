"""How the command line says what the library says."""

import re


def with_options(sentence: str, by_config: bool = True) -> str:
    """A library's sentence with the fields it names, in backticks, as the options that set them.

    Commands that do not run by a config have the place of their data as --root.
    """
    if not by_config:
        sentence = sentence.replace("`data.root`", "`root`")
    return re.sub(r"`([a-z_]+(?:\.[a-z_]+)*)`", lambda field: f"--{field[1].replace('_', '-')}", sentence)
