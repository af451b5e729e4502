"""The exception for mistakes of the user."""

import difflib
from collections.abc import Iterable


class PolyNeXtError(ValueError):
    """A mistake in the input. The message says what was given, what was expected and what to do.

    Fields and parameters that the user can change are in backticks. The command line prints only the message, with
    these as options.
    """


def require_at_least(least: float, **given: float) -> None:
    """Raises if a setting is lower, or not a number."""
    for name, value in given.items():
        if not value >= least:
            raise PolyNeXtError(f"`{name}` is {value}: give at least {least}.")


def require_share(whole: bool = True, **given: float) -> None:
    """Raises if a setting is not in [0, 1], or in [0, 1) without `whole`."""
    for name, value in given.items():
        if not (0 <= value < 1 or (whole and value == 1)):
            raise PolyNeXtError(f"`{name}` is {value}: give at least 0 and {'at most' if whole else 'less than'} 1.")


def preview(names: Iterable[str], most: int = 8) -> str:
    """The first names of a list, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more if listed else "nothing"


def suggest(given: str, known: Iterable[str], otherwise: str) -> str:
    """What to do about an unknown name: "did you mean ...?" with similar names, or `otherwise`."""
    close = difflib.get_close_matches(given, list(known), n=3)
    return f"did you mean {' or '.join(close)}?" if close else otherwise
