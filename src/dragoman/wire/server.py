"""What a wire is to a server: it reads requests, and writes replies and refusals."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Protocol

from msgspec import Struct

from ..errors import MalformedToolCallError, ProviderError, StructuredOutputError
from ..events import (
    Event,
    FinishReason,
    MessageComplete,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    read_object,
)
from ..messages import Issuer, LossWarning, Request
from .codec import HttpReply


class Asked(Struct, frozen=True):
    """What a client asked for: the request, and what of it had no place in one."""

    request: Request
    warnings: tuple[LossWarning, ...] = ()
    stream_usage: bool = True
    """Does the client want to be told the usage at the end of a stream?"""
    issuer: Issuer | None = None
    """Who will answer, if the server knows: whose opaque state the reply carries."""


class ServerCodec(Protocol):
    """One wire as its server sees it. Pure: no socket, no clock, no log."""

    wire: ClassVar[str]

    def decode(self, body: bytes, path: str = "") -> Asked:
        """Read a request's body; ``path`` is the URL's, where a wire puts the model and the mode into it.

        A field without a place in ``Request`` is refused or kept in ``config.extras``, or it is a mere
        hint and named in ``warnings``. Raises ``InvalidRequestError`` or ``UnsupportedContentError``.
        """

    def encoder(self, asked: Asked, *, created: int = 0) -> ReplyEncoder:
        """An encoder for the one reply to this request; ``created`` (epoch seconds) goes where the wire shows it."""

    def error(self, error: ProviderError) -> HttpReply:
        """A refusal before the reply has begun: status, headers (``retry-after`` among them) and body."""

    def key(self, headers: Mapping[str, str]) -> str | None:
        """The key a client presents; ``headers`` have lower-case names."""


class ReplyEncoder(ABC):
    """Writes one reply, event by event.

    Feed it the events in their order, then call ``end()``, or ``fail()`` with what was raised. For a
    stream each call returns the bytes to send; for a whole body all but the last return nothing.

    A call or a text that was found unsound on our side is the model's word all the same: the reply came
    whole, and the client gets it as it is, unless it would look sound there. A body that has no way to
    say it (an input that is not JSON where the wire has an object), or that broke off, raises the error
    on, for ``ServerCodec.error``.
    """

    content_type: str = "application/json"

    def __init__(self) -> None:
        self._complete: MessageComplete | None = None
        self._unsound: ProviderError | None = None
        self._shows = False  # is a call unsound in a way that its input, as it is sent, shows?
        self._hides = False  # or in one that would look sound?
        self._lacks = False  # or has one no input at all, which looks sound unless the reply was too long?
        self._input: list[str] = []  # of the open call

    def note_input(self, event: ToolUseStart | ToolUseInputDelta | ToolUseEnd) -> None:
        """Follow the input of a call."""
        if isinstance(event, ToolUseInputDelta):
            self._input.append(event.partial_json)
        elif isinstance(event, ToolUseStart):
            self._input = []
        elif event.problem is not None:
            text = "".join(self._input)
            hidden = event.problem == "malformed" and read_object(text) is not None
            self._hides, self._shows = self._hides or hidden, self._shows or not hidden
            self._lacks = self._lacks or (event.problem == "malformed" and not text.strip())

    @abstractmethod
    def feed(self, event: Event) -> bytes:
        """Write one event."""

    @abstractmethod
    def end(self) -> bytes:
        """Write the end of a reply that came whole."""

    @abstractmethod
    def broken(self, error: ProviderError) -> bytes:
        """Write the end of a reply that broke off."""

    def fail(self, error: ProviderError) -> bytes:
        """Write the end of a reply after which something was raised."""
        # A call may be unsound for what came after it was complete: what was sent of it looks like a sound one.
        lacks = self._lacks and self._complete is not None and self._complete.finish_reason != "length"
        visible = self._shows and not self._hides and not lacks
        judged = isinstance(error, StructuredOutputError) or (isinstance(error, MalformedToolCallError) and visible)
        if self._complete is None or not judged:
            return self.broken(error)
        self._unsound = error
        return self.end()

    def finish_word(self, complete: MessageComplete, words: Mapping[str, FinishReason]) -> str:
        """The wire's word for why the reply ended; ``words`` has the usual one of each reason first.

        The provider's own word stands when it is one of this wire's and means the same.
        """
        raw, reason = complete.finish_raw, complete.finish_reason
        if reason == "error" and isinstance(self._unsound, MalformedToolCallError):
            reason = words.get(raw or "", "tool_calls")  # how it ended; that a call is unsound is for the client to see
        if raw is not None and words.get(raw) == reason:
            return raw
        usual = next((word for word, meaning in words.items() if meaning == reason), None)
        return usual or raw or "error"
