"""A fully polynomial network on encrypted images.

A circuit (`polynext.circuit`) becomes a `Plan`: a program, CKKS parameters and the bill. The server keeps the program,
publishes its `Offer`, and answers; the client makes keys for the offer, encrypts and decrypts. Start with
`planner.py`; `program.py` and `execution.py` are the computation itself, `backends/` the libraries that encrypt.
"""

from typing import TYPE_CHECKING, Any

from polynext.extras import require

require("encrypted", "scipy")

from polynext.encrypted.client import Client, OutOfRangeError
from polynext.encrypted.client_spec import Offer
from polynext.encrypted.compiler.planner import Limits, Plan, make_plan
from polynext.encrypted.compiler.prepare import plan_run, prepare
from polynext.encrypted.runtime.backends import get_backend
from polynext.encrypted.server import Server, save_server

if TYPE_CHECKING:
    from polynext.encrypted.remote import RemoteClient, connect

__all__ = [
    "Client",
    "Limits",
    "Offer",
    "OutOfRangeError",
    "Plan",
    "RemoteClient",
    "Server",
    "connect",
    "get_backend",
    "make_plan",
    "plan_run",
    "prepare",
    "save_server",
]


def __getattr__(name: str) -> Any:
    if name in ("RemoteClient", "connect"):  # files between folders need no HTTP
        from polynext.encrypted import remote

        return getattr(remote, name)
    raise AttributeError(f"module 'polynext.encrypted' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), "RemoteClient", "connect"]
