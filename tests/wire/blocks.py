"""Every kind of block on every wire: what happens when it is sent, and which replies contain it.

``python -m tests.wire.blocks`` writes the table into ``docs/concepts/wires.md``;
``test_blocks.py`` checks that the table is up to date.
"""

from pathlib import Path
from typing import Any, NamedTuple

import msgspec

import dragoman as d
from dragoman.events import Assembler
from dragoman.validate import check_request
from dragoman.wire import CODECS, Codec
from dragoman.wire.request import PORTABLE
from tests.rows import read_table

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/concepts/wires.md"
START = "<!-- blocks -->\n"
END = "<!-- /blocks -->\n"
WIRES = ("openai", "anthropic", "gemini", "responses", "ollama", "cohere", "bedrock")
MODEL = "test-model"

WORD = "xylophone"  # a text that occurs nowhere else in a request
TOOL = "zither"
CALL = d.ToolCall("call_1", TOOL, {})
DONE = d.ToolResult("call_1", "done")
PNG = d.Image(d.Inline("aGk="), "image/png")


class Kind(NamedTuple):
    """A kind of block: an example block, and its path in the test conversation."""

    block: Any
    path: str


# The paths of a block in a user message, in a tool result, and in a message of the model.
USER = "messages[0].content[1]"
RESULT = "messages[2].content[0]"
MODELS = "messages[1].content[0]"
KINDS: dict[str, Kind] = {
    "text of the user": Kind(d.Text(WORD), USER),
    "image, inline": Kind(PNG, USER),
    "image, by URL": Kind(d.Image(d.Url("https://example.test/a.png"), "image/png"), USER),
    "document, inline": Kind(d.Document(d.Inline("aGk="), "application/pdf", "a.pdf"), USER),
    "document, by URL": Kind(
        d.Document(d.Url("https://example.test/a.pdf"), "application/pdf"), USER
    ),
    "text in a tool's result": Kind(d.Text(WORD), RESULT),
    "image in a tool's result": Kind(PNG, RESULT),
    "document in a tool's result": Kind(
        d.Document(d.Inline("aGk="), "application/pdf", "a.pdf"), RESULT
    ),
    "text of the model": Kind(d.Text(WORD), MODELS),
    "text, signed": Kind(d.Text(WORD, d.Continuity("c2ln")), MODELS),
    "text with citations": Kind(
        d.Text(WORD, d.Continuity(opaque={"citations": ["https://example.test/a"]})), MODELS
    ),
    "thinking": Kind(d.Thinking(WORD), MODELS),
    "thinking, signed": Kind(d.Thinking(WORD, d.Continuity("c2ln")), MODELS),
    "redacted thinking": Kind(d.RedactedThinking("ZW5j", d.Continuity()), MODELS),
    "tool call": Kind(CALL, MODELS),
    "tool call, signed": Kind(d.ToolCall("call_1", TOOL, {}, d.Continuity("c2ln")), MODELS),
    "a provider's own block": Kind(d.Opaque({"type": "x"}, d.Continuity()), MODELS),
    "image of the model": Kind(
        d.Image(d.Inline("aGk="), "image/png", continuity=d.Continuity()), MODELS
    ),
    "audio of the user": Kind(d.Audio(d.Inline("aGk="), "audio/wav"), USER),
    "audio in a tool's result": Kind(d.Audio(d.Inline("aGk="), "audio/wav"), RESULT),
    "audio of the model": Kind(d.Audio(d.Inline("aGk="), "audio/wav", transcript=WORD), MODELS),
}


def send(wire: str, name: str) -> str:
    """Encode a request that contains a block; return what happens to the block on this wire, such
    as sent or dropped. If replies of the wire can contain this kind of block, the block comes from
    such a reply.
    """
    kind = KINDS[name]
    reply = REPLIES.get(name, {}).get(wire)
    blocks = [kind.block]
    if reply is not None:
        blocks = [block for block in receive(wire, reply) if type(block) is type(kind.block)]
    request = d.Request(_converse(kind, blocks), config=d.RuntimeConfig(max_tokens=9), model=MODEL)
    check_request(request)
    try:
        encoded = _codec(wire, reply).encode(request)
    except d.UnsupportedContentError:
        return "refused"
    found = [note for note in encoded.notes if note.path.startswith(kind.path)]
    whole = [note for note in found if note.path == kind.path]
    if whole:
        return f"{whole[0].outcome}: `{whole[0].code}`"
    body = encoded.http.body.decode()
    missing = [block for block in blocks if not any(mark in body for mark in _marks(block))]
    assert not missing, f"{wire}: nothing reports that {missing} is not sent"
    if not found and name.endswith("signed"):
        assert any(mark in body for block in blocks for mark in _marks(block.continuity)), (
            f"{wire}: {name}"
        )
    return f"sent; {found[0].outcome}: `{found[0].code}`" if found else "sent"


def _marks(value: Any) -> list[str]:
    """Return the strings of a block that the encoded request must contain: texts, data, URLs and
    ids.
    """
    data = msgspec.to_builtins(value)
    left = [data]
    found = []
    while left:
        each = left.pop()
        if isinstance(each, dict):
            left += [
                inner
                for name, inner in each.items()
                if name not in ("type", "issuer", "media_type", "status")
            ]
        elif isinstance(each, list):
            left += each
        elif isinstance(each, str):
            found.append(each)
    return found


def send_tool(wire: str, name: str) -> str:
    """Encode a request that contains a server-side tool; return what happens to the tool on this
    wire.
    """
    request = d.Request(
        [d.User("Go.")],
        config=d.RuntimeConfig(max_tokens=9),
        model=MODEL,
        server_tools=(d.ServerTool(name),),
    )
    check_request(request)
    try:
        encoded = _codec(wire, None).encode(request)
    except d.UnsupportedFeatureError:
        return "refused"
    assert encoded.notes == ()
    return "sent"


def _converse(kind: Kind, blocks: list[Any]) -> list[d.Message]:
    if kind.path == USER:
        return [d.User([d.Text("Look."), *blocks])]
    if kind.path == RESULT:
        return [d.User("Go."), d.Assistant([CALL]), d.ToolResult("call_1", blocks)]
    if isinstance(kind.block, d.ToolCall):
        return [d.User("Go."), d.Assistant(blocks), d.ToolResult(blocks[0].id, "done")]
    return [d.User("Go."), d.Assistant([*blocks, d.Text("Said."), CALL]), DONE]


def _codec(wire: str, reply: Any) -> Codec:
    # On the openai wire, only routers send signed reasoning, and it is read only with this quirk.
    quirks = {"reasoning_details": True} if "reasoning_details" in str(reply) else None
    return CODECS[wire].connect(MODEL, "http://127.0.0.1:9", quirks, d.Capabilities())


def receive(wire: str, reply: Any) -> list[Any]:
    """Decode a reply and return its blocks."""
    request = d.Request((d.User("hi"),), config=d.RuntimeConfig(max_tokens=9), model=MODEL)
    codec = _codec(wire, reply)
    out = Assembler(request_id="r", model=MODEL, provider="p", issuer=d.Issuer(wire, None, MODEL))
    decoder = codec.decoder(request, out)
    events = [*decoder.feed(msgspec.json.encode(reply)), *decoder.end()]
    return list(d.fold(events).message.content)


# For each kind of block and each wire: a reply that contains the block. If a wire has no entry,
# its replies never contain this kind.
REPLIES: dict[str, dict[str, Any]] = {}
for kind, wire, reply in read_table("block_replies"):
    REPLIES.setdefault(kind, {})[wire] = reply


def write_table() -> str:
    """Return a Markdown list with a line for each kind of block: which wires send it, what the
    other wires do with it, and whose replies contain it.
    """
    lines = []
    for name in KINDS:
        found = {wire: send(wire, name) for wire in WIRES}
        replies = f"; in replies of {_list([*REPLIES[name]])}" if REPLIES.get(name) else ""
        lines.append(f"- {name}: {_row(found)}{replies}")
    for name in PORTABLE:
        tools = {wire: send_tool(wire, name) for wire in WIRES}
        lines.append(f'- `ServerTool("{name}")`: {_row(tools)}')
    return "\n".join(lines) + "\n"


def _row(found: dict[str, str]) -> str:
    """Return the wires that send something, and what happens otherwise, by wire."""
    sent = [wire for wire, outcome in found.items() if outcome.startswith("sent")]
    others: dict[str, list[str]] = {}
    for wire, outcome in found.items():
        if outcome != "sent":
            others.setdefault(outcome.removeprefix("sent; "), []).append(wire)
    notes = [f"{outcome} ({_list(wires)})" for outcome, wires in others.items()]
    return "; ".join([_list(sent), *notes])


def _list(wires: list[str]) -> str:
    if not wires:
        return "–"
    missing = [wire for wire in WIRES if wire not in wires]
    if len(missing) > 2:
        return ", ".join(wires)
    return f"all but {', '.join(missing)}" if missing else "all"


def with_table(page: str) -> str:
    """Replace the list of blocks in the text of a page; return the new text."""
    before, _, rest = page.partition(START)
    return f"{before}{START}\n{write_table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
