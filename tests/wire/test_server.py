"""Replies as a server writes them, where the pairs of client and server have no case."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dragoman.errors import AuthenticationError, CallCancelledError, InvalidRequestError
from dragoman.events import Assembler, Event, Usage
from dragoman.messages import Opaque, RedactedThinking, Request, Thinking, User
from dragoman.wire import SERVER_CODECS, Asked


def make(*, finish: str = "stop", **usage: int) -> list[Event]:
    out = Assembler(request_id="R", model="m")
    out.start()
    out.thinking("Hm.")
    out.attach(Thinking, "signed")
    out.text("Yes.")
    out.whole(RedactedThinking("x"))
    out.whole(Opaque({"type": "theirs"}))
    out.usage(Usage(**usage))
    out.finish(finish)  # type: ignore[arg-type]
    return out.take()


def write(wire: str, events: list[Event], *, stream: bool, created: int = 0) -> bytes:
    encoder = SERVER_CODECS[wire].encoder(Asked(Request([User("Hi")], model="m", stream=stream)), created=created)
    return b"".join([encoder.feed(event) for event in events]) + encoder.end()


@pytest.mark.parametrize("wire", SERVER_CODECS)
def test_a_cancelled_reply_is_an_error(wire: str) -> None:
    events = make(finish="cancelled")
    assert b"cancelled" in write(wire, events, stream=True)
    with pytest.raises(CallCancelledError):
        write(wire, events, stream=False)


def test_statuses_that_messages_has_types_for() -> None:
    codec = SERVER_CODECS["anthropic"]
    denied = codec.error(AuthenticationError("no", status=403))
    long = codec.error(InvalidRequestError("too long", status=413))
    kinds = [(each.status, msgspec.json.decode(each.body)["error"]["type"]) for each in (denied, long)]
    assert kinds == [(403, "permission_error"), (413, "request_too_large")]


def test_a_thought_without_text_and_signature_is_not_sent() -> None:
    out = Assembler(request_id="R", model="m")
    out.start()
    out.attach(Thinking, opaque={"type": "reasoning"})
    out.text("Yes.")
    out.finish("stop")
    events = out.take()
    (candidate,) = msgspec.json.decode(write("gemini", events, stream=False))["candidates"]
    assert candidate["content"]["parts"] == [{"text": "Yes."}]


def test_ollama_dates_its_lines() -> None:
    body: dict[str, Any] = msgspec.json.decode(write("ollama", make(), stream=False, created=1_800_000_000))
    assert body["created_at"] == "2027-01-15T08:00:00Z"
    assert body["message"] == {"role": "assistant", "content": "Yes.", "thinking": "Hm."}
