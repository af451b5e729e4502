"""Run a fully polynomial network on encrypted images.

The compiler (`compiler/`) turns a circuit (`polynext.circuit`) into a `Plan`: a program, CKKS parameters and a cost
estimate. The server keeps the program, publishes its `ClientSpec` and computes; the client makes keys for the client
spec, encrypts and decrypts. `runtime/` executes programs. Clients and servers, in this folder, do not need the
compiler.
"""

import warnings
from typing import Any

import lazy_loader

# A client does not import the compiler or HTTP unless it uses them.
lazy_getattr, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name == "Offer":
        warnings.warn("polynext.encrypted.Offer is now ClientSpec", DeprecationWarning, stacklevel=2)
        name = "ClientSpec"
    return lazy_getattr(name)
