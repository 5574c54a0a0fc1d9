"""Recent responses: what a client can continue on the connection on which it received it.

They are in memory only, even if the client sets ``store: false``, and end with the connection.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import msgspec


class RecentResponses:
    """The last response of each lane of all open connections, within a number of bytes.

    If there are too many bytes, the oldest responses are dropped. Their clients get the same error
    as after a lost connection, and send the complete conversation again.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self.size = 0
        self._kept: OrderedDict[tuple[object, str], tuple[str, bytes]] = OrderedDict()

    def find(self, connection: object, lane: str) -> tuple[str, bytes]:
        """Return the id and the record of the last response of a lane; empty ones without it."""
        return self._kept.get((connection, lane), ("", b""))

    def keep(self, connection: object, lane: str, response_id: str, record: bytes) -> None:
        """Replace the last response of a lane."""
        self.drop(connection, lane)
        self._kept[connection, lane] = (response_id, record)
        self.size += len(record)
        while self.size > self._most_bytes:
            _, (_, dropped) = self._kept.popitem(last=False)
            self.size -= len(dropped)

    def drop(self, connection: object, lane: str) -> None:
        """Forget the last response of a lane."""
        _, record = self._kept.pop((connection, lane), ("", b""))
        self.size -= len(record)


class RecentOfLane:
    """The recent responses of a connection, for a request on one of its lanes.

    The request may continue the last response of any lane, so that it begins a branch.
    """

    def __init__(
        self, recent: RecentResponses, connection: object, lane: str, lanes: set[str]
    ) -> None:
        self._recent = recent
        self._connection = connection
        self._lane = lane
        self._lanes = lanes

    def find(self, response_id: Any) -> Any:
        """Return the record of a response, or None if it is not the last one of a lane."""
        for lane in self._lanes:
            found, record = self._recent.find(self._connection, lane)
            if record and found == response_id:
                return msgspec.json.decode(record)
        return None

    def keep(self, response_id: str, record: Any) -> None:
        """Keep the response to the request as the last one of its lane."""
        data = msgspec.json.encode(record)
        self._recent.keep(self._connection, self._lane, response_id, data)
