"""The interfaces of a wire's WebSockets: each message of a client is a request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from ..errors import ProviderError
from .codec import HttpReply


class SocketRequest(NamedTuple):
    """The request in a message: its body, and whether the model has to answer it."""

    fields: dict[str, Any]
    generates: bool


class SocketCodec(ABC):
    """What clients of one wire send and receive on a WebSocket.

    A message contains a body as it would be posted, and the events of the streamed reply are
    messages. Messages of different lanes may be answered at the same time.
    """

    max_age: ClassVar[float]
    """The seconds after which a connection ends."""
    max_lanes: ClassVar[int]
    """The maximum number of lanes of a connection."""
    max_running: ClassVar[int]
    """The maximum number of requests that a connection has answered at the same time."""
    last_events: ClassVar[frozenset[bytes]]
    """The names of the events after which a reply has no more of them."""

    @abstractmethod
    def read_lane(self, message: bytes) -> str:
        """Return the name of a message's lane, which is empty for the default lane.

        A message that cannot be read belongs to the default lane. An invalid name raises
        ``InvalidRequestError``.
        """

    @abstractmethod
    def read_request(self, fields: Mapping[str, Any]) -> SocketRequest:
        """Return the request in the fields of a message, as if it was posted."""

    @abstractmethod
    def write_event(
        self, event: bytes, lane: str, headers: Mapping[str, str] | None = None
    ) -> bytes:
        """Return the message for an event of a reply; the first one has the reply's headers."""

    @abstractmethod
    def write_error(
        self, status: int, headers: Mapping[str, str], body: bytes, lane: str
    ) -> bytes:
        """Return the message for a reply that is an error."""

    @abstractmethod
    def too_old(self) -> ProviderError:
        """Return the error for a connection that has reached its maximum age."""

    @abstractmethod
    def too_many_lanes(self) -> ProviderError:
        """Return the error for a lane beyond the maximum."""


class SocketEvent(NamedTuple):
    """What a message of a server means for the connection."""

    is_last: bool
    """Whether the reply ends with this message."""
    is_failure: bool
    """Whether the request has failed."""
    headers: Mapping[str, str]
    """The headers of the reply that the message contains, with names in lower case."""
    error: HttpReply | None
    """The error reply that the message contains, as HTTP would have sent it."""


class SocketForm(ABC):
    """What a provider of one wire sends and receives on a WebSocket.

    Each request is a message, and the events of its reply are messages. A connection answers one
    request at a time.
    """

    max_age: ClassVar[float]
    """The seconds after which no further request is sent on a connection."""

    @abstractmethod
    def write_request(self, body: bytes) -> bytes:
        """Return the message for a request, given the body that would be posted."""

    @abstractmethod
    def read_event(self, message: bytes) -> SocketEvent:
        """Return what a message means for the connection."""
