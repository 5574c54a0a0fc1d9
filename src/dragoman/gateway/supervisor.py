"""Run the HTTP server in this process, or in several worker processes under a supervisor."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import ssl
import sys
from functools import partial

from starlette.applications import Starlette
from uvicorn.config import STARTUP_FAILURE, Config
from uvicorn.server import Server
from uvicorn.supervisors import Multiprocess

from .access import Service
from .app import create_app_from_environment
from .readiness import serve_readiness


class ServerConfig(Config):
    """Let ``BoundedHttpProtocol`` make the TLS handshake, with its limits, in place of asyncio.

    asyncio waits 60 seconds for a handshake, and uvicorn counts only connections after it.
    """

    tls: ssl.SSLContext | None = None

    def load(self) -> None:
        """Load the settings, and keep the TLS context away from uvicorn."""
        super().load()
        self.tls, self.ssl = self.ssl, None


class _Supervisor(Multiprocess):
    """Forward SIGHUP to the workers, which then reload their models.

    uvicorn's own supervisor would restart the workers instead. It would also keep its copies of
    the sockets open until all workers have ended: the kernel would accept connections while
    workers drain, and no process would answer them.
    """

    def __init__(self, config: Config, listener: socket.socket | None) -> None:
        # A worker answers the supervisor only after it has imported the application. By default,
        # it is replaced after 5 seconds, so that no worker would ever start on a busy machine.
        config.timeout_worker_healthcheck = 60
        super().__init__(config, sockets=[config.bind_socket()])
        self._listener = listener

    def terminate_all(self) -> None:
        super().terminate_all()
        for each in (*self.sockets, self._listener):
            if each is not None:
                each.close()

    def handle_hup(self) -> None:
        for process in self.processes:
            if process.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGHUP)


def bind_port(host: str, port: int) -> socket.socket:
    """Bind a socket that all workers can share, or raise ``OSError``."""
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        if os.name == "posix":  # on Windows this option would share the port with other programs
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound


def tune_collector() -> None:
    """Let the garbage collector run less often, and skip the objects of the application itself.

    It runs after 700 new objects by default. A request creates as many, and few of them are in
    reference cycles; with 32 requests at a time, searching them took 7 % of the CPU time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def create_worker_app(listener: socket.socket | None) -> Starlette:
    """Build the application of a worker.

    With ``listener``, the application also serves ``/health`` and ``/ready`` on that socket. A
    ``functools.partial`` of this function and the socket is pickled for each worker process.
    """
    app = create_app_from_environment()
    tune_collector()
    if listener is not None:
        service: Service = app.state.service
        service.side_port = partial(serve_readiness, service, listener)
    return app


def run(config: Config, listener: socket.socket | None = None) -> None:
    """Run the server until a signal stops it.

    ``listener`` is the socket of the separate port for ``/health`` and ``/ready``.
    """
    if config.workers > 1:
        _Supervisor(config, listener).run()
        return
    server = Server(config)
    with contextlib.suppress(KeyboardInterrupt):
        server.run()
    if not server.started:
        sys.exit(STARTUP_FAILURE)
