"""Encryption libraries behind one interface (`protocol.py`). Each is one file here and one line below."""

import importlib
from functools import cache

from polynext.encrypted.runtime.backends.protocol import Backend
from polynext.errors import PolyNeXtError
from polynext.extras import install_command

MODULES = {"seal": "polynext.encrypted.runtime.backends.seal", "clear": "polynext.encrypted.runtime.backends.clear"}


@cache
def get_backend(name: str) -> Backend:
    """A backend by name: `seal` encrypts; `clear` computes the same without encryption, for tests.

    The encryption library is imported here and nowhere else.
    """
    if name not in MODULES:
        raise PolyNeXtError(f"there is no backend {name!r}: choose one of {', '.join(MODULES)}.")
    try:
        return importlib.import_module(MODULES[name]).BACKEND
    except ImportError as error:
        raise PolyNeXtError(
            f"the {name} backend of encrypted inference is not installed ({error}): {install_command('client')}."
        ) from error
