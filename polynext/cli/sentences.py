"""How the command line says what the library says."""

import re


def with_options(sentence: str) -> str:
    """A library's sentence with the fields it names, in backticks, as the options that set them."""
    return re.sub(r"`([a-z_]+(?:\.[a-z_]+)*)`", lambda field: f"--{field[1].replace('_', '-')}", sentence)
