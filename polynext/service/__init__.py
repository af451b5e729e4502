"""Private inference over HTTP: networks that answer on ciphertexts, for many clients at once.

`service.py` is what happens, `app.py` puts it into HTTP, `store.py` remembers it, `answering.py` computes, `workers.py`
and `cluster.py` say on which machines. `polynext.encrypted.connect` is the client.
"""

from polynext.extras import require

require("serve", "fastapi", "uvicorn", "prometheus_client", "zstandard")

from polynext.service.app import create_app
from polynext.service.networks import Network, load_networks
from polynext.service.run import serve
from polynext.service.service import Service
from polynext.service.settings import Settings, Tokens
from polynext.service.store import Store
from polynext.service.workers import LocalWorkers

__all__ = ["LocalWorkers", "Network", "Service", "Settings", "Store", "Tokens", "create_app", "load_networks", "serve"]
