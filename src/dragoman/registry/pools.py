"""Connection pools: one per adapter, shared by all its models.

A provider that a registry opens holds a ``PoolLease`` on its adapter's pool. Closing the last
lease closes the connections; a lease that is used again opens new ones, until the registry is
closed.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from weakref import WeakSet

from msgspec import Struct

from ..errors import InvalidRequestError
from ..transport import HttpStream, HttpTransport, Secret, Timeouts, Transport
from ..wire import HttpRequest
from ..wire.socket import SocketForm


class Connection(Struct, frozen=True):
    """How to reach the servers of an adapter: ``proxy`` is a URL, ``"env"`` or ``"none"``.

    ``ca`` is a file of certificate authorities, ``client_cert`` a file with the client's
    certificate, and ``client_key`` a file with its key unless ``client_cert`` contains it.
    """

    proxy: str = "env"
    ca: str | None = None
    client_cert: str | None = None
    client_key: str | None = None

    def __repr__(self) -> str:  # omit the proxy, whose URL may contain a password
        return f"Connection(ca={self.ca!r}, client_cert={self.client_cert!r})"

    def make_transport(self) -> Transport:
        """Return a new transport.

        Raise ``ValueError`` or ``OSError`` if the proxy, a certificate or a key is unusable.
        """
        trusted: str | ssl.SSLContext | None = self.ca
        if self.client_cert is not None:
            trusted = ssl.create_default_context(cafile=self.ca)
            # with an empty password, OpenSSL rejects an encrypted key instead of prompting
            trusted.load_cert_chain(self.client_cert, self.client_key, password="")
        return HttpTransport(proxy=None if self.proxy == "none" else self.proxy, ca=trusted)


class AdapterPool:
    """The connections of one adapter: one transport per event loop."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._transports: dict[asyncio.AbstractEventLoop, Transport] = {}
        # weak references, so that a garbage-collected provider releases its lease
        self.leases: WeakSet[PoolLease] = WeakSet()
        self.closed = False

    def transport(self) -> Transport:
        """Return the transport for the running event loop."""
        loop = asyncio.get_running_loop()
        found = self._transports.get(loop)
        if found is None:
            for ended in [each for each in self._transports if each.is_closed()]:
                del self._transports[ended]  # dropping a transport closes its sockets
            found = self._transports[loop] = self.connection.make_transport()
        return found

    async def release(self, lease: PoolLease) -> None:
        """Release a lease; releasing the last lease closes the connections."""
        self.leases.discard(lease)
        if not self.leases:
            await self.close_connections()

    async def close_connections(self) -> None:
        """Close the open connections. A later call opens new ones."""
        transports, self._transports = self._transports, {}
        for transport in transports.values():
            await transport.close()


class PoolLease(Transport):
    """Permission for one provider to use a connection pool.

    ``holders`` counts the callers that share the provider.
    """

    def __init__(self, pool: AdapterPool) -> None:
        self._pool = pool
        self.holders = 0

    def send(
        self,
        request: HttpRequest,
        credentials: Mapping[str, Secret],
        timeouts: Timeouts,
        *,
        stream: bool = False,
    ) -> AbstractAsyncContextManager[HttpStream]:
        return self._use().send(request, credentials, timeouts, stream=stream)

    def send_over_socket(
        self,
        request: HttpRequest,
        credentials: Mapping[str, Secret],
        timeouts: Timeouts,
        form: SocketForm,
        *,
        stream: bool = False,
    ) -> AbstractAsyncContextManager[HttpStream]:
        return self._use().send_over_socket(request, credentials, timeouts, form, stream=stream)

    def _use(self) -> Transport:
        pool = self._pool
        if pool.closed:
            raise InvalidRequestError(
                "the registry of this provider is closed", advice="Load the registry again."
            )
        pool.leases.add(self)
        return pool.transport()

    async def close(self) -> None:
        self.holders = max(0, self.holders - 1)
        if not self.holders:
            await self._pool.release(self)


class Pools:
    """The connection pools of a registry, one for each adapter."""

    def __init__(self) -> None:
        self._pools: dict[str, AdapterPool] = {}
        self._replaced: list[AdapterPool] = []

    def lease(self, adapter: str, connection: Connection) -> PoolLease:
        """Return a lease on an adapter's pool; replace the pool if the settings have changed."""
        pool = self._pools.setdefault(adapter, AdapterPool(connection))
        if pool.connection != connection:
            self._replaced.append(pool)
            pool = self._pools[adapter] = AdapterPool(connection)
        return PoolLease(pool)

    async def close(self) -> None:
        """Close all connections permanently."""
        for pool in [*self._replaced, *self._pools.values()]:
            pool.closed = True
            await pool.close_connections()
