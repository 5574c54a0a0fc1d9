"""The server side of the cohere wire. A reply consists of named events, or is one body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ... import events as ev
from ...errors import MalformedToolCallError, ProviderError
from ...messages import Audio, Image, Text, Thinking
from ..headers import PROGRAM, HeaderRule
from ..json import known
from ..listing import ListedModel
from ..media import describe_all, describe_medium
from ..request_schema import COMMON, COUNT, MESSAGES, RequestSchema, body_with_model
from ..rules import FieldTable
from ..seal import own_fields
from ..server import Asked, BodyEncoder, ReplyEncoder, ServerCodec, encode_json, named_frame
from ..server_errors import code_field, message_on, status_of
from .finish import FINISH
from .reply import USAGE
from .server_errors import TERMS
from .server_request import TABLE, read_request

# --- writing replies for clients ---------------------------------------------------------------


class _StreamEncoder(ReplyEncoder):
    wire = "cohere"
    finish = FINISH

    def __init__(self, asked: Asked, created: int) -> None:
        super().__init__(asked, created)
        self._index = -1  # the index of the last block
        self._open = ""  # the type of the open content
        self._calls = -1  # the index of the last call

    def begin(self, event: ev.MessageStart) -> bytes:
        fields = {"content": [], "tool_plan": "", "tool_calls": [], "citations": []}
        message = {"role": "assistant", **fields}
        return named_frame(
            {"id": event.message_id, "type": "message-start", "delta": {"message": message}}
        )

    def text(self, event: ev.TextDelta) -> bytes:
        return self._turn("text") + self.write_text(event) if event.text else b""

    def thinking(self, event: ev.ThinkingDelta) -> bytes:
        if not event.text:
            return b""
        opened = self._turn("thinking")
        return opened + _content("content-delta", self._index, thinking=event.text)

    def call_start(self, event: ev.ToolUseStart) -> bytes:
        self._calls += 1
        function = {"name": event.tool_name, "arguments": ""}
        record = {"id": event.tool_use_id, "type": "function", "function": function}
        return self._turn("") + self._call("tool-call-start", record)

    def call_input(self, event: ev.ToolUseInputDelta) -> bytes:
        return self._call("tool-call-delta", {"function": {"arguments": event.partial_json}})

    def call_end(self, event: ev.ToolUseEnd) -> bytes:
        is_empty = self.calls[-1].is_object and self.calls[-1].is_blank
        filled = (
            self._call("tool-call-delta", {"function": {"arguments": "{}"}}) if is_empty else b""
        )
        return filled + named_frame({"type": "tool-call-end", "index": self._calls})

    def write_end(self, complete: ev.MessageComplete) -> bytes:
        spoken = b""
        for text in describe_all(complete.final_content):
            spoken += self._turn("text") + _content("content-delta", self._index, text=text)
        citations = enumerate(_citations_of(complete))
        cited = b"".join([_citation(at, record) for at, record in citations])
        closed = self._turn("")
        usage = USAGE.write(complete.usage)
        end = _end(finish_reason=self.finish_word(complete), usage=usage)
        return spoken + cited + closed + end

    def write_error(self, error: ProviderError) -> bytes:
        usage = self.complete.usage if self.complete is not None else ev.Usage()
        kind = _MALFORMED if isinstance(error, MalformedToolCallError) else str(status_of(error))
        end = {
            "usage": USAGE.write(usage),
            "error": message_on(error, TERMS),
            "error_type": kind,
            **code_field(error),
        }
        return self._turn("") + _end(finish_reason="ERROR", **end)

    def _turn(self, kind: str) -> bytes:
        """Close the open content block, begin one of type ``kind``, and return the events."""
        if kind == self._open:
            return b""
        ended = named_frame({"type": "content-end", "index": self._index}) if self._open else b""
        self._open = kind
        self.text_block = -1
        if not kind:
            return ended
        self._index += 1
        self.frame_text(_content("content-delta", self._index, text="\0"))
        return ended + _content("content-start", self._index, type=kind, **{kind: ""})

    def _call(self, kind: str, call: dict[str, Any]) -> bytes:
        return named_frame(
            {"type": kind, "index": self._calls, "delta": {"message": {"tool_calls": call}}}
        )


_MALFORMED = "INVALID_TOOL_GENERATION"


def _content(kind: str, index: int, **content: str) -> bytes:
    return named_frame({"type": kind, "index": index, "delta": {"message": {"content": content}}})


def _citation(index: int, record: Any) -> bytes:
    frame = named_frame(
        {"type": "citation-start", "index": index, "delta": {"message": {"citations": record}}}
    )
    return frame + named_frame({"type": "citation-end", "index": index})


def _end(**delta: Any) -> bytes:
    return named_frame({"type": "message-end", "delta": delta}) + b"data: [DONE]\n\n"


def _citations_of(complete: ev.MessageComplete) -> list[Any]:
    """Return the citations in a complete reply, if they come from this wire."""
    texts = [block for block in complete.final_content if isinstance(block, Text)]
    return [
        each
        for text in texts
        for each in own_fields(text.continuity, "cohere").get("citations", ())
    ]


class _BodyEncoder(BodyEncoder):
    wire = "cohere"
    finish = FINISH

    def write_end(self, complete: ev.MessageComplete) -> bytes:
        content: list[dict[str, Any]] = []
        for block in complete.final_content:
            if isinstance(block, Text):
                content.append({"type": "text", "text": block.text})
            elif isinstance(block, Thinking):
                content.append({"type": "thinking", "thinking": block.text})
            elif isinstance(block, Audio | Image):
                content.append({"type": "text", "text": describe_medium(block)})
        message = known(
            content=content or None,
            tool_calls=self.function_calls() or None,
            citations=_citations_of(complete) or None,
        )
        body = {
            "id": complete.message_id,
            "message": {"role": "assistant", **message},
            "finish_reason": self.finish_word(complete),
            "usage": USAGE.write(complete.usage),
        }
        return encode_json(body)


# The headers that only clients of this wire send.
HEADERS: Mapping[str, HeaderRule] = {"x-client-name": PROGRAM, "x-fern-sdk-name": PROGRAM}


class CohereServer(ServerCodec):
    """The server side of the v2 chat wire."""

    wire: ClassVar[str] = "cohere"
    terms = TERMS
    headers = HEADERS
    table: ClassVar[FieldTable] = TABLE
    returns_state: ClassVar[bool] = False
    schema = RequestSchema(
        body_with_model("messages", **COMMON, messages=MESSAGES, max_tokens=COUNT)
    )
    paths = ("/v2/chat",)
    path_marks = ("/v2/",)
    header_marks = ("x-fern-sdk-name",)
    read_request = staticmethod(read_request)
    stream_type = _StreamEncoder
    body_type = _BodyEncoder

    def list_models(self, models: Sequence[ListedModel]) -> dict[str, Any]:
        """Return the list of served models."""
        return {"models": [self.show_model(model) for model in models]}

    def show_model(self, model: ListedModel) -> dict[str, Any]:
        """Return the description of one model."""
        abilities = {"embed": "embeddings", "rerank": "reranking"}
        found = [call for call, ability in abilities.items() if model.is_known_to(ability)]
        fields = {"name": model.name, "endpoints": found or ["chat"]}
        return known(**fields, context_length=model.window)

    def error_body(self, error: ProviderError) -> dict[str, Any]:
        record = {"id": error.request_id or "", "message": message_on(error, TERMS)}
        return {**record, **code_field(error)}
