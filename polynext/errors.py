"""The one exception that users meet."""

import difflib
from collections.abc import Iterable


class PolyNeXtError(ValueError):
    """A mistake in what was given, told in one sentence: what was given, what was expected, what to do.

    A field or parameter that the user may change is named in backticks: the command line, which prints that sentence
    and nothing else, writes it as an option.
    """


def require_at_least(least: float, **given: float) -> None:
    """Raises if one of these settings is lower, or no number."""
    for name, value in given.items():
        if not value >= least:
            raise PolyNeXtError(f"`{name}` is {value}: give at least {least}.")


def require_share(whole: bool = True, **given: float) -> None:
    """Raises if one of these settings is not between 0 and 1; unless they may be the whole, 1 is too much."""
    for name, value in given.items():
        if not (0 <= value < 1 or (whole and value == 1)):
            raise PolyNeXtError(f"`{name}` is {value}: give at least 0 and {'at most' if whole else 'less than'} 1.")


def preview(names: Iterable[str], most: int = 8) -> str:
    """The first names of a list, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more if listed else "nothing"


def suggest(given: str, known: Iterable[str], otherwise: str) -> str:
    """What to do about an unknown name: "did you mean ...?" if known ones are like it."""
    close = difflib.get_close_matches(given, list(known), n=3)
    return f"did you mean {' or '.join(close)}?" if close else otherwise
