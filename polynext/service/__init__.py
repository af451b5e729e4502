"""Encrypted inference over HTTP, for many clients at once.

Start with `service.py`, which is the service without HTTP. `routes.py` and `app.py` add HTTP, `store.py` saves keys and
jobs, `inference.py` computes, and `workers.py` and `cluster.py` run it on one machine or several. The client is
`polynext.encrypted.connect`.
"""

import warnings
from typing import Any

from polynext.extras import require

require("serve", "fastapi", "uvicorn", "prometheus_client")

from polynext.service.app import create_app
from polynext.service.networks import ServedNetwork, load_networks
from polynext.service.run import serve
from polynext.service.service import Service
from polynext.service.settings import Settings, Tokens
from polynext.service.store import Store
from polynext.service.workers import LocalWorkers

__all__ = [
    "LocalWorkers",
    "ServedNetwork",
    "Service",
    "Settings",
    "Store",
    "Tokens",
    "create_app",
    "load_networks",
    "serve",
]


def __getattr__(name: str) -> Any:
    if name == "Network":
        warnings.warn("polynext.service.Network is now ServedNetwork", DeprecationWarning, stacklevel=2)
        return ServedNetwork
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
