"""The one exception that users meet."""


class PolyNeXtError(ValueError):
    """A mistake in what was given, told in one sentence: what was given, what was expected, what to do.

    A field or parameter that the user may change is named in backticks: the command line, which prints that sentence
    and nothing else, writes it as an option.
    """


def require_at_least(least: float, **given: float) -> None:
    """Raises if one of these settings is lower."""
    for name, value in given.items():
        if value < least:
            raise PolyNeXtError(f"`{name}` is {value}: give at least {least}.")
