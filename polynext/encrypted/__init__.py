"""Run a fully polynomial network on encrypted images.

The compiler turns a circuit (`polynext.circuit`) into a `Plan`: a program, CKKS parameters and an estimate of the cost.
The server keeps the program, publishes its `Offer` and answers; the client makes keys for the offer, encrypts and
decrypts. `compiler/` goes from circuit to program, `runtime/` executes programs; clients and servers, in this folder,
need no compiler.
"""

import lazy_loader

# A client imports neither the compiler nor HTTP unless it uses them.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
