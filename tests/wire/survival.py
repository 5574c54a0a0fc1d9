"""What a client of each wire sends back of a reply of a model of each wire, by test runs.

``python -m tests.wire.survival`` writes the table into ``docs/reference/gateway-reasoning.md``;
``test_survival.py`` checks that the table is up to date.
"""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import dragoman as d
from dragoman.events import Assembler, Event
from dragoman.validate import Expectation
from dragoman.wire import SERVER_CODECS, Asked
from dragoman.wire.seal import has_state

from .vendor_turns import SAY

TOOL = d.Tool("f", "", parameters={"type": "object"})
CLIENTS = ("anthropic", "responses", "gemini", "bedrock", "openai", "ollama", "cohere")
ITEM = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "ZW5j+/8="}


def call(out: Assembler, key: int, signature: str | None = None, opaque: Any = None) -> None:
    out.tool_start(key, f"call_{key}", "f", signature, opaque)
    out.tool_input(key, '{"n": ')
    out.tool_input(key, f"{key}}}")
    out.block_end(key)


def think_signed(out: Assembler) -> None:
    for piece in ("Let me ", "see.", " Two calls."):
        out.thinking(piece)
    out.attach(d.Thinking, "c2lnbmVk+/8=")
    out.block_end()
    out.text("I ask.")
    call(out, 0)
    call(out, 1)


def think_twice(out: Assembler) -> None:
    for signature in ("b25l", "dHdv"):
        out.thinking(f"{signature} ")
        out.thinking("Hm.")
        out.attach(d.Thinking, signature)
        out.block_end()
    call(out, 0)


def think_redacted(out: Assembler) -> None:
    out.whole(d.RedactedThinking("aGlkZGVu+/8="))
    call(out, 0)


def think_encrypted(out: Assembler) -> None:
    out.attach(d.Thinking, opaque=ITEM)
    out.block_end()
    call(out, 0, opaque={"x_state": "n"})


def think_in_summaries(out: Assembler) -> None:
    parts = [{"type": "summary_text", "text": text} for text in ("One.", "Two.")]
    out.attach(d.Thinking, opaque={"id": "rs_1"})
    for piece in ("One.", "\n\n", "Two."):
        out.thinking(piece)
    out.attach(d.Thinking, opaque={**ITEM, "summary": parts})
    out.block_end()
    out.text("I ")
    out.text("ask.")
    out.attach(d.Text, opaque={"phase": "commentary"})
    out.block_end()
    call(out, 0)


def sign_calls(out: Assembler) -> None:
    out.thinking("Hm")
    out.attach(d.Thinking)
    out.thinking(".")
    call(out, 0, "Y2FsbA+/")
    call(out, 1)


def sign_text(out: Assembler) -> None:
    out.text("I ")
    out.text("answer.")
    out.text(" So.", d.Continuity("dGV4dA=="))
    out.text("", d.Continuity("ZW5k"))


def compact(out: Assembler) -> None:
    out.text("Go on.")
    out.block_end()
    out.whole(d.Opaque({"type": "compaction", "content": "c"}))


def keep_details(out: Assembler) -> None:
    out.thinking("Hm.")
    out.attach(d.Thinking, opaque=[{"type": "reasoning.encrypted", "data": "x", "index": 0}])
    out.block_end()
    call(out, 0)


REPLIES: dict[tuple[str, str], Callable[[Assembler], None]] = {
    ("anthropic", "signed thinking"): think_signed,
    ("anthropic", "redacted thinking"): think_redacted,
    ("anthropic", "compaction"): compact,
    ("bedrock", "signed thinking"): think_signed,
    ("bedrock", "two signed thoughts"): think_twice,
    ("bedrock", "redacted thinking"): think_redacted,
    ("responses", "encrypted reasoning"): think_encrypted,
    ("responses", "encrypted reasoning with a summary"): think_in_summaries,
    ("gemini", "signed call"): sign_calls,
    ("gemini", "signed text"): sign_text,
    ("openai", "reasoning details"): keep_details,
}
"""A reply for each kind of state, by the wire of the model."""


@cache
def answer(wire: str, name: str) -> tuple[Event, ...]:
    """Return the events of a reply of a model of a wire."""
    request = d.Request([d.User("Hi")], tools=(TOOL,), model="m")
    issuer = d.Issuer(wire, "a-vendor", "a-model")
    out = Assembler(model="m", issuer=issuer, expected=Expectation(request))
    out.start()
    REPLIES[wire, name](out)
    out.finish("tool_calls" if out.has_calls else "stop")
    assert out.error is None
    return tuple(out.take())


def send_on(events: Sequence[Event], client: str, *, stream: bool) -> bytes:
    """Return a reply as the gateway writes it for a client."""
    asked = Asked(request=d.Request([d.User("Hi")], tools=(TOOL,), model="m", stream=stream))
    encoder = SERVER_CODECS[client].encoder(asked)
    return b"".join([encoder.feed(event) for event in events]) + encoder.end()


@cache
def return_from(wire: str, name: str, client: str, stream: bool) -> tuple[d.Message, ...]:
    """Return the conversation that the gateway reads after the client sent a reply back."""
    sent = SAY[client](send_on(answer(wire, name), client, stream=stream), stream)
    return tuple(SERVER_CODECS[client].decode(sent.body, sent.path).request.messages)


# --- the page ------------------------------------------------------------------------------------

PAGE = Path(__file__).parents[2] / "docs/reference/gateway-reasoning.md"
START = "<!-- survival -->\n"
END = "<!-- /survival -->\n"


def count_states(message: d.Message) -> int:
    """Return the number of blocks with state that a message has."""
    assert isinstance(message, d.Assistant)
    return len([block for block in message.content if needs_return(block)])


def needs_return(block: d.messages.AssistantBlock) -> bool:
    """Return whether a block must go back to its issuer unchanged."""
    if isinstance(block, d.RedactedThinking | d.Opaque):
        return True
    is_item = isinstance(block, d.Thinking) and block.continuity is not None
    opaque = block.continuity.opaque if is_item and block.continuity is not None else None
    if isinstance(opaque, dict) and "summary" in opaque and not opaque.get("encrypted_content"):
        return False
    return has_state(block.continuity)


def outcome(wire: str, name: str, client: str) -> str:
    """Return whether the state of a reply survives a client, in bodies and in streams."""
    if client not in SAY:
        return "no"
    events = answer(wire, name)
    ending = events[-1]
    assert isinstance(ending, d.MessageComplete)
    sent = count_states(d.Assistant(ending.final_content))
    found = [count_states(return_from(wire, name, client, each)[1]) for each in (False, True)]
    return {(True, True): "yes", (True, False): "body", (False, True): "stream"}.get(
        (found[0] == sent, found[1] == sent), "no"
    )


def write_table() -> str:
    """Return the table: a row for each kind of state, a column for each client."""
    head = ["model's wire", "state", *CLIENTS]
    rows = [
        [wire, name, *[outcome(wire, name, client) for client in CLIENTS]]
        for wire, name in REPLIES
    ]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(["| " + " | ".join(line) + " |" for line in lines]) + "\n"


def with_table(page: str) -> str:
    """Replace the table in the text of the page; return the new text."""
    before, _, rest = page.partition(START)
    return f"{before}{START}\n{write_table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
