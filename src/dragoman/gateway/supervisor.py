"""Run the HTTP server in this process, or in several worker processes under a supervisor."""

from __future__ import annotations

import contextlib
import gc
import logging
import multiprocessing
import os
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from starlette.applications import Starlette
from uvicorn.config import STARTUP_FAILURE, Config, create_ssl_context
from uvicorn.server import Server
from uvicorn.supervisors import Multiprocess
from uvicorn.supervisors.multiprocess import Process

from ..registry.folders import read_stamp
from .access import Service
from .app import create_app_from_environment
from .readiness import serve_readiness

log = logging.getLogger("dragoman")

_ANSWER_SECONDS = 60.0  # seconds after which a worker that does not answer is replaced
# The same for a worker that has never answered. It starts, which takes over a minute if many share
# a processor; its replacement would not be faster.
_START_SECONDS = 600.0


class ServerConfig(Config):
    """Let ``BoundedHttpProtocol`` make the TLS handshake, with its limits, in place of asyncio.

    asyncio waits 60 seconds for a handshake, and uvicorn counts only connections after it. A
    certificate that is renewed is used from the next connection on.
    """

    _tls: ssl.SSLContext | None = None
    _stamps: tuple[Any, ...] = ()

    def load(self) -> None:
        """Load the settings, and keep the TLS context away from uvicorn."""
        self._stamps = self._read_stamps()  # before the files, so that no change is missed
        super().load()
        self._tls = self.ssl
        self.ssl = None

    @property
    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS context of the next connection, or nothing without TLS."""
        if self._tls is None:
            return None
        stamps = self._read_stamps()
        if stamps != self._stamps:
            self._stamps = stamps
            self._renew_certificate()
        return self._tls

    def _read_stamps(self) -> tuple[Any, ...]:
        files = (self.ssl_certfile, self.ssl_keyfile)
        return tuple([read_stamp(Path(file)) for file in files if file is not None])

    def _renew_certificate(self) -> None:
        """Read the certificate and its key again; keep the earlier ones if they do not fit.

        They are two files, so that one of them is older for a moment.
        """
        assert self.ssl_certfile is not None
        try:
            self._tls = create_ssl_context(
                self.ssl_certfile, self.ssl_keyfile, None, self.ssl_version, self.ssl_cert_reqs,
                self.ssl_ca_certs, self.ssl_ciphers,
            )  # fmt: skip
        except (OSError, ssl.SSLError) as error:
            log.error("the certificate was not read again: %s", error)  # noqa: TRY400 - without a traceback
            return
        log.warning("the certificate was read again")


class _Supervisor(Multiprocess):
    """Replace workers that end or hang, and forward SIGHUP, at which workers reload their models.

    uvicorn's own supervisor would restart the workers instead. It would also keep its copies of
    the sockets open until all workers have ended: the kernel would accept connections while
    workers drain, and no process would answer them. And it waits for the answer of each worker in
    turn: while a worker starts, it would handle no signal and replace no other worker.
    """

    def __init__(
        self,
        config: Config,
        listener: socket.socket | None,
        *,
        bound: socket.socket | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(config, sockets=[bound or config.bind_socket()])
        self._listener = listener
        self._clock = clock
        # when each worker was asked for a sign of life that it has not given yet
        self._asked: dict[Process, float] = {}
        self._started: set[Process] = set()

    def keep_subprocess_alive(self) -> None:
        """Replace the workers that have ended or do not answer; never wait for a worker."""
        for index, process in enumerate(self.processes):
            if self.should_exit.is_set():
                return
            if process.process.is_alive() and not self._is_hung(process):
                continue
            self._asked.pop(process, None)
            self._started.discard(process)
            process.kill()
            process.join()
            if process.exitcode == STARTUP_FAILURE:
                # every other worker would fail in the same way
                log.error("the worker %s failed to start; the gateway ends", process.pid)
                self.should_exit.set()
                return
            log.warning("the worker %s ended; another one is started", process.pid)
            self.processes[index] = Process(self.config, self.sockets)
            self.processes[index].start()

    def _is_hung(self, process: Process) -> bool:
        """Return whether a worker has not answered for too long; ask it again if it has answered.

        A worker answers only after it has imported the application.
        """
        pipe = process.parent_conn
        now = self._clock()
        # the pipe fails if the worker ends now, which the next round notices
        with contextlib.suppress(OSError, EOFError, UnpicklingError):
            if process in self._asked and pipe.poll(0):
                pipe.recv()
                del self._asked[process]
                self._started.add(process)
            if process not in self._asked:
                self._asked[process] = now
                pipe.send(b"ping")
        limit = _ANSWER_SECONDS if process in self._started else _START_SECONDS
        return now - self._asked.get(process, now) > limit

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
    _end_with_parent()
    app = create_app_from_environment()
    tune_collector()
    if listener is not None:
        service: Service = app.state.service
        service.side_port = partial(serve_readiness, service, listener)
    return app


def _end_with_parent() -> None:
    """Let this worker drain and end when its supervisor has ended, even by SIGKILL.

    The worker would otherwise hold the port and go on serving, and nothing could reload, replace
    or stop it.
    """
    supervisor = multiprocessing.parent_process()
    if supervisor is None:
        return

    def wait() -> None:
        # the end of the supervisor closes a pipe that every process of multiprocessing has
        supervisor.join()
        log.error("the supervisor of the worker %s has ended; the worker ends too", os.getpid())
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="dragoman-supervisor", daemon=True).start()


def run(
    config: Config, listener: socket.socket | None = None, bound: socket.socket | None = None
) -> None:
    """Run the server until a signal stops it.

    ``bound`` is the socket of the server, and ``listener`` that of the separate port for
    ``/health`` and ``/ready``.
    """
    if config.workers > 1:
        _Supervisor(config, listener, bound=bound).run()
        return
    server = Server(config)
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=None if bound is None else [bound])
    if not server.started:
        sys.exit(STARTUP_FAILURE)
