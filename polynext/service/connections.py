"""Fair shares of connections and requests: no address can take all of them."""

import ipaddress
from collections import Counter
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

IDLE_SECONDS = 15.0  # in which a connection must bring a whole request
LOCAL = ("127.0.0.1", "::1")  # proxies on this machine


def client_network(client: Any) -> str:
    """The address of a client, (host, port); for IPv6 its network, of which a client may have all addresses."""
    if client is None:
        return "unknown"
    try:
        address = ipaddress.ip_address(client[0])
    except ValueError:
        return str(client[0])
    if address.version == 4:
        return str(address)
    return str(ipaddress.ip_network((address, 64), strict=False).network_address)


class LimitedConnection(H11Protocol):
    """A connection that closes if its address has too many, or if no request arrives.

    Proxies have limits of their own. They are on this machine, or those whose X-Forwarded-For header uvicorn believes.
    """

    most = 0
    open: Counter[str]
    requests = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.address = client_network(self.client)
        self.open[self.address] += 1
        if self.open[self.address] > self.most and not self.of_a_proxy():
            transport.abort()
            return
        self.loop.call_later(IDLE_SECONDS, self.close_if_idle, 0)

    def of_a_proxy(self) -> bool:
        trusted = self.config.forwarded_allow_ips
        listed = trusted.split(",") if isinstance(trusted, str) else trusted
        host = self.client[0] if self.client else ""
        return not {"*", host}.isdisjoint([*LOCAL, *(name.strip() for name in listed)])

    def connection_lost(self, exc: Exception | None) -> None:
        self.open[self.address] -= 1
        if not self.open[self.address]:
            del self.open[self.address]
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self.requests += 1
        super().on_response_complete()

    def close_if_idle(self, requests: int) -> None:
        """Close a connection without a request in progress, if there were none since there were `requests`."""
        if self.transport.is_closing():
            return
        if requests == self.requests and (self.cycle is None or self.cycle.response_complete):
            self.transport.close()
        else:
            self.loop.call_later(IDLE_SECONDS, self.close_if_idle, self.requests)


def limited_connections(most: int) -> type[LimitedConnection]:
    """A protocol for uvicorn with at most this many connections from one address."""
    return type("LimitedConnections", (LimitedConnection,), {"most": most, "open": Counter()})
