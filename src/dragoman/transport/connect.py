"""Open connections: addresses, TLS, proxies and Unix sockets.

``create_connection`` resolves host names and tries the addresses one after another, with the delay
of RFC 8305 ("happy eyeballs"). TLS certificates are verified, the minimum version is 1.2, and ALPN
offers only ``http/1.1``. A proxy receives ``CONNECT`` for https URLs, and requests with absolute
URLs for http.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import re
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from msgspec import Struct

from ..errors import InvalidResponseError, NetworkError, advise_import, without_frames
from ..validate.yaml import ConfigError
from .connection import ClientConnection, FramingError
from .contract import Secret

# The delay in seconds between two connection attempts, as RFC 8305 recommends.
_NEXT_ADDRESS = 0.25
_SHUTDOWN_SECONDS = 1.0
_PROXY = "Check the variables HTTPS_PROXY, HTTP_PROXY and NO_PROXY."
_UNQUOTED = re.compile(r"[^!-~]")

Certificate = str | tuple[str, str] | tuple[str, str, str]
Make = Callable[[], ClientConnection]


class Address(Struct, frozen=True):
    """The address that a request is sent to."""

    origin: str
    scheme: str
    host: str
    port: int
    authority: str  # the value of the Host header field
    path: str

    @property
    def is_tls(self) -> bool:
        return self.scheme == "https"


@lru_cache(maxsize=256)
def parse_url(url: str) -> Address:
    """Parse an http or https URL; raise ``ValueError`` for any other text."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("the URL is not an http or https URL; begin it with https:// or http://")
    host = parts.hostname if parts.hostname.isascii() else parts.hostname.encode("idna").decode()
    name = f"[{host}]" if ":" in host else host
    port = parts.port or (443 if parts.scheme == "https" else 80)
    authority = f"{name}:{parts.port}" if parts.port else name
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if _UNQUOTED.search(authority):
        raise ValueError("the host of the URL is malformed")
    if _UNQUOTED.search(path):
        path = quote(path, safe="!#$%&'()*+,/:;=?@[]~")
    return Address(f"{parts.scheme}://{authority}", parts.scheme, host, port, authority, path)


class Proxy:
    """An HTTP proxy.

    ``authorization`` is the value of the header ``Proxy-Authorization``. It is empty unless the
    ``url`` contains a user name and a password.
    """

    def __init__(self, url: str) -> None:
        scheme, found, _ = url.partition("://")
        if not found:
            url = f"http://{url}"
        elif scheme.lower() not in ("http", "https"):
            # Other proxies, such as SOCKS, are rejected. If they were ignored or treated as HTTP
            # proxies, a request over http:// would send its key to them in plain text.
            raise NetworkError(
                f"the proxy is a {scheme[:20]} URL; only http and https proxies are supported"
            )
        try:
            parts = urlsplit(url)
            self.target = parse_url(url)
        except ValueError:
            raise NetworkError("the URL of the proxy is malformed", advice=_PROXY) from None
        self.url = url
        self.origin = self.target.origin  # scheme, host and port, without credentials
        self.authorization = Secret(None)
        if parts.username or parts.password:
            pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
            self.authorization = Secret("Basic " + base64.b64encode(pair.encode()).decode())


def is_loopback(host: str) -> bool:
    """Return whether a host is ``localhost`` or a loopback address; ``127.example.org`` is not."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def find_proxy(target: Address) -> Proxy | None:
    """Return the proxy that environment variables set for a URL; ``None`` if there is none.

    Loopback addresses and hosts in NO_PROXY never have a proxy.
    """
    if is_loopback(target.host):
        return None
    # Import this module only on demand: it imports http.client and email, which is slow.
    from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

    proxies = getproxies_environment()
    url = proxies.get(target.scheme) or proxies.get("all")
    if (
        not url
        or proxy_bypass_environment(target.authority, proxies)
        or _is_in_network(target.host, proxies)
    ):
        return None
    return Proxy(url)


def _is_in_network(host: str, proxies: dict[str, str]) -> bool:
    """Return whether an address is in a network that NO_PROXY lists, such as 10.0.0.0/8."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    for entry in proxies.get("no", "").split(","):
        try:
            if address in ipaddress.ip_network(entry.strip(), strict=False):
                return True
        except ValueError:
            continue
    return False


def make_context(ca: str | None, cert: Certificate | None) -> ssl.SSLContext:
    """Return TLS settings that trust the authorities in ``ca`` and present ``cert`` as the client.

    ``ca`` is the path of a file, ``system`` for the trust store of the operating system, or
    ``None`` for OpenSSL's default.

    If the file also contains revocation lists, each certificate of a server's chain is checked
    against the list of its issuer. A certificate whose issuer has no list is rejected.
    """
    if ca == "system":
        with advise_import("ca='system' needs the extra: pip install 'dragoman[truststore]'"):
            import truststore
        context: ssl.SSLContext = truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    else:
        with _reading("ca", ca):
            context = ssl.create_default_context(cafile=ca)
        if ca is not None and context.cert_store_stats()["crl"]:
            context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_CHAIN
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if cert is not None:
        files = (cert,) if isinstance(cert, str) else cert
        with _reading("cert", files[0]):
            context.load_cert_chain(*files)
    return context


@contextmanager
def _reading(setting: str, path: str | None) -> Iterator[None]:
    """Raise ``ConfigError`` with the path if OpenSSL cannot read a file of certificates."""
    try:
        yield
    except OSError as error:  # ``ssl.SSLError`` is one
        reason = getattr(error, "reason", None) or error.strerror or type(error).__name__
        raise ConfigError(str(path), None, f"{setting}: cannot be used: {reason}") from error


@lru_cache(maxsize=1)
def _default_context() -> ssl.SSLContext:
    """Return the default TLS settings, cached since loading the CA certificates takes 20 ms."""
    return make_context(None, None)


class Dialer:
    """Open connections directly, through a proxy, or to a Unix socket."""

    def __init__(self, context: ssl.SSLContext | None, uds: str | None) -> None:
        self._context = context
        if uds is not None and sys.platform == "win32":
            raise ValueError("uds: Python has no Unix sockets on Windows; use a port of 127.0.0.1")
        self._uds = uds

    async def dial(self, target: Address, proxy: Proxy | None, make: Make) -> ClientConnection:
        """Open a connection; raise a ``NetworkError`` that names only the origin and the proxy."""
        where = target.origin
        via = f" through the proxy {proxy.origin}" if proxy is not None else ""
        try:
            if proxy is None:
                return await self._reach(target, make, target.host)
            if not target.is_tls:
                return await self._reach_proxy(target, proxy, make)
            return await self._tunnel(target, proxy, make)
        except ssl.CertificateError as error:
            why = getattr(error, "verify_message", "") or "it is not valid for this host"
            raise NetworkError(
                f"the certificate of {where} was refused{via}: {why}"
            ) from without_frames(error)
        except ssl.SSLError as error:
            why = (error.reason or "unknown reason").lower().replace("_", " ")
            raise NetworkError(f"TLS with {where} failed{via}: {why}") from without_frames(error)
        except socket.gaierror as error:
            unresolved = NetworkError(f"the host name of {where} cannot be resolved")
            unresolved.is_unresolved = True
            raise unresolved from without_frames(error)
        except (ConnectionResetError, ConnectionAbortedError) as error:
            raise NetworkError(
                f"{where} closed the connection{via} before TLS was set up"
            ) from without_frames(error)
        except OSError as error:
            unreached = NetworkError(f"the server at {where} cannot be reached{via}")
            unreached.is_unreached = True
            raise unreached from without_frames(error)

    async def _reach(self, target: Address, make: Make, name: str) -> ClientConnection:
        """Connect to the host of ``target``; its TLS certificate must be valid for ``name``."""
        settings: dict[str, Any] = {}
        if target.is_tls:
            settings = {"ssl": self._context or _default_context(), "server_hostname": name}
            settings["ssl_shutdown_timeout"] = _SHUTDOWN_SECONDS
        loop = asyncio.get_running_loop()
        if self._uds is not None:
            return (await loop.create_unix_connection(make, self._uds, **settings))[1]
        is_address = ":" in target.host or target.host.replace(".", "").isdigit()
        if isinstance(loop, asyncio.BaseEventLoop) and not is_address:
            # only asyncio's own event loops support this option; uvloop tries the addresses in
            # sequence
            settings["happy_eyeballs_delay"] = _NEXT_ADDRESS
        return (await loop.create_connection(make, target.host, target.port, **settings))[1]

    async def _reach_proxy(self, target: Address, proxy: Proxy, make: Make) -> ClientConnection:
        try:
            return await self._reach(proxy.target, make, proxy.target.host)
        except OSError as error:
            message = f"the proxy {proxy.origin} to {target.origin} cannot be reached"
            raise NetworkError(message, advice=_PROXY) from without_frames(error)

    async def _tunnel(self, target: Address, proxy: Proxy, make: Make) -> ClientConnection:
        """Ask a proxy for a tunnel to the server (``CONNECT``), and start TLS inside it."""
        tunnel = await self._reach_proxy(target, proxy, make)
        try:
            address = (
                f"[{target.host}]:{target.port}"
                if ":" in target.host
                else f"{target.host}:{target.port}"
            )
            key = proxy.authorization
            lines = [f"CONNECT {address} HTTP/1.1", f"host: {address}", "user-agent: dragoman"]
            lines += [f"proxy-authorization: {key.reveal()}"] if key else []
            tunnel.without_body = True
            tunnel.send("\r\n".join([*lines, "", ""]).encode(), b"", limit=tunnel.limit)
            if tunnel.state == "head":
                await tunnel.wait()
            self._check_tunnel(tunnel, target, proxy)
            connection = make()
            outer, tunnel.transport = tunnel.transport, None
            transport = outer and await asyncio.get_running_loop().start_tls(
                outer,
                connection,
                self._context or _default_context(),
                server_hostname=target.host,
                ssl_shutdown_timeout=_SHUTDOWN_SECONDS,
            )
        except BaseException:
            tunnel.close()
            raise
        if transport is None:
            raise ConnectionResetError("the proxy closed the connection")
        connection.connection_made(transport)
        return connection

    def _check_tunnel(self, tunnel: ClientConnection, target: Address, proxy: Proxy) -> None:
        if isinstance(tunnel.failure, FramingError):
            broken = InvalidResponseError(
                f"what the proxy {proxy.origin} answered is not valid HTTP"
            )
            raise broken from without_frames(tunnel.failure)
        if not 200 <= tunnel.status < 300:
            refused = NetworkError(
                f"the proxy {proxy.origin} refused to connect to {target.origin}", advice=_PROXY
            )
            refused.status = tunnel.status or None
            raise refused
