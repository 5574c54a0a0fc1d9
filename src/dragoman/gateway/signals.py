"""Handle signals of a gateway process: SIGTERM drains it, SIGHUP reloads its configuration."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import threading
from typing import Any

from ..errors import scrub
from ..registry.folders import read_stamp
from .access import Service
from .models import Models

log = logging.getLogger("dragoman")

_POLL_SECONDS = 1.0  # seconds between two looks at the configuration file


def handle_signals(service: Service) -> None:
    """Install signal handlers: SIGTERM and SIGINT drain the process, SIGHUP reloads its models.

    After SIGTERM, ``/ready`` reports 503 for ``drain_delay`` seconds while requests are still
    served, so that load balancers stop sending requests. Then the HTTP server's own handler runs,
    which drains the server. SIGINT drains the server without that delay. SIGHUP replaces the
    models for new requests; running requests finish with the earlier models.
    """
    previous: dict[int, Any] = {
        number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)
    }
    if threading.current_thread() is not threading.main_thread() or not all(
        map(callable, previous.values())
    ):
        return
    loop = asyncio.get_running_loop()

    def leave(number: int, frame: Any) -> None:
        waits = service.drain_delay if number == signal.SIGTERM and not service.leaving else 0.0
        service.leaving = True
        if waits:
            loop.call_soon_threadsafe(loop.call_later, waits, previous[number], number, None)
        else:
            previous[number](number, frame)

    for number in previous:
        signal.signal(number, leave)
    reloads: set[asyncio.Task[bool]] = set()  # the event loop keeps no task alive by itself

    def reload() -> None:
        task = loop.create_task(reload_models(service))
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    if sys.platform != "win32":
        loop.add_signal_handler(signal.SIGHUP, reload)


async def reload_models(service: Service) -> bool:
    """Reload the configured models for new requests; return whether that succeeded.

    If the configuration is invalid, write an error to the log and keep the current models.
    """
    assert service.reload is not None
    if service.config is not None:
        service.config_stamp = await asyncio.to_thread(read_stamp, service.config)
    try:
        fresh = await asyncio.to_thread(service.reload)
    except Exception as error:  # an invalid file may raise any exception
        log.error("the configuration was not read again: %s", scrub(str(error)))  # noqa: TRY400 - without a traceback
        return False
    earlier, service.models = service.models, fresh
    earlier.is_retired = True
    log.warning("the configuration was read again")
    if not earlier.users:
        await earlier.close()
    return True


async def follow_config(service: Service) -> None:
    """Reload the models within a second of a change of the file that configures them.

    A file that is missing for a moment, as while an editor replaces it, changes nothing.
    """
    assert service.config is not None
    while True:
        await asyncio.sleep(_POLL_SECONDS)
        stamp = await asyncio.to_thread(read_stamp, service.config)
        if stamp not in (None, service.config_stamp):
            await reload_models(service)


async def release_models(models: Models) -> None:
    """Release the models that a finished request used.

    If a reload has replaced the models and no other request uses them, close them.
    """
    models.users -= 1
    if models.is_retired and not models.users:
        with contextlib.suppress(Exception):
            await models.close()
