"""Add up the counters of all workers of a gateway, since a scrape reaches only one of them.

Each worker saves its counters to a file of its own once a second. The worker that receives the
scrape adds the counters in the other files to its own. The file of a worker that has ended is
kept, so that no counter decreases.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from pathlib import Path

import msgspec

from ..messages import new_ulid
from .metrics import Metrics, SavedMetrics
from .processes import is_alive

log = logging.getLogger("dragoman")

_SECONDS = 1.0  # seconds between two saves
_saved = msgspec.json.Decoder(SavedMetrics)


class MetricsFolder:
    """The folder to which every worker writes a file with its counters."""

    def __init__(self, folder: str | Path, metrics: Metrics) -> None:
        self._folder = Path(folder)
        self._metrics = metrics
        self._path = self._folder / f"{os.getpid()}-{new_ulid()}.json"
        self._written = b""

    def save(self) -> None:
        """Write the counters of this process to its file, if they changed."""
        data = msgspec.json.encode(self._metrics.save())
        if data == self._written:
            return
        fresh = self._path.with_suffix(".new")
        try:
            fresh.write_bytes(data)
            fresh.replace(self._path)
        except OSError as error:
            log.warning("the metrics of this worker cannot be saved: %s", error)
            return
        self._written = data

    async def keep_saving(self) -> None:
        """Write the counters of this process to its file once a second."""
        while True:
            self.save()
            await asyncio.sleep(_SECONDS)

    def gather(self) -> Metrics:
        """Return the counters summed over all workers.

        The counters of the other workers are up to a second old.
        """
        total = Metrics()
        total.add(self._metrics.save())
        for path in sorted(self._folder.glob("*.json")):
            if path == self._path:
                continue
            # ignore a file that is unreadable or that another program wrote
            with contextlib.suppress(OSError, ValueError):
                saved = _saved.decode(path.read_bytes())
                if not is_alive(int(path.name.partition("-")[0])):
                    saved.in_flight = 0
                total.add(saved)
        return total
