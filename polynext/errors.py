"""The one exception that users meet."""


class PolyNeXtError(ValueError):
    """A mistake in what was given, told in one sentence: what was given, what was expected, what to do.

    The command line prints that sentence and nothing else.
    """
