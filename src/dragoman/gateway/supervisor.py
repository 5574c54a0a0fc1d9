"""Run the HTTP server in this process, or in several worker processes under a supervisor."""

from __future__ import annotations

import contextlib
import os
import signal
import sys

from uvicorn.config import STARTUP_FAILURE, Config
from uvicorn.server import Server
from uvicorn.supervisors import Multiprocess


class _Supervisor(Multiprocess):
    """Forward SIGHUP to the workers, which then reload their models.

    uvicorn's own supervisor would restart the workers instead.
    """

    def handle_hup(self) -> None:
        for process in self.processes:
            if process.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGHUP)


def run(config: Config) -> None:
    """Run the server until a signal stops it."""
    if config.workers > 1:
        _Supervisor(config, sockets=[config.bind_socket()]).run()
        return
    server = Server(config)
    with contextlib.suppress(KeyboardInterrupt):
        server.run()
    if not server.started:
        sys.exit(STARTUP_FAILURE)
