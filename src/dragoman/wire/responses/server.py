"""The Responses wire, server side. It is stateless: each request has the complete conversation."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar

import msgspec

from ... import events as ev
from ...errors import ProviderError
from ...messages import (
    AssistantBlock,
    Audio,
    Continuity,
    Image,
    Inline,
    Opaque,
    RedactedThinking,
    Text,
    Thinking,
    ToolCall,
)
from ..json import json_text
from ..losses import merge
from ..media import describe_medium, write_annotations
from ..openai.server import HEADERS, error_record
from ..openai.server_errors import TERMS
from ..request import list_other_forms
from ..request_schema import COMMON, COUNT, TEXT, TEXT_OR_PARTS, RequestSchema, body_with_model
from ..rules import FieldTable
from ..seal import (
    has_state,
    own_fields,
    seal_call,
    seal_hidden,
    seal_text,
    seal_thought,
    write_opaque,
)
from ..server import (
    Asked,
    BodyEncoder,
    CallFacts,
    ReplyEncoder,
    ServerCodec,
    encode_json,
    named_frame,
    state_of,
)
from .echo import DEFAULTS
from .finish import FINISH
from .reply import USAGE
from .request import ACCESS, ADDED, SERVER_TOOLS, list_tools, needs_functions
from .server_request import TABLE, read_request
from .socket import ResponsesSocket

# --- writing replies for clients ---------------------------------------------------------------


class _Encoder(ReplyEncoder):
    wire = "responses"
    finish = FINISH

    @property
    def id(self) -> str:
        """The id of the reply, without its prefix."""
        return "" if self.start is None else self.start.message_id.removeprefix("msg_")

    def name_of(self, tool: str) -> dict[str, str]:
        """Return the name of a called tool, with its namespace if the client declared one."""
        if tool not in self.asked.grouped:
            return {"name": tool}
        namespace, name = self.asked.grouped[tool]
        return {"name": name, "namespace": namespace}

    def new_item(self, at: int, kind: str, **fields: Any) -> dict[str, Any]:
        """Return a new output item with the status ``in_progress``; reasoning has no status."""
        status = {} if kind == "reasoning" else {"status": "in_progress"}
        return {"id": f"{_PREFIXES[kind]}_{at}_{self.id}", "type": kind, **fields, **status}

    def reasoning(
        self, item: dict[str, Any], text: str, state: Continuity | None
    ) -> dict[str, Any]:
        """Return a reasoning item with its text and its opaque state."""
        own = own_fields(state, "responses")
        if own.get("type") == "reasoning":
            return {**own, "id": item["id"]}
        item["summary"] = [_summary_part(text)] if text else []
        if (token := seal_thought(text, state)) is not None:
            item["encrypted_content"] = token
        return item

    def carrier(self, at: int, token: str) -> dict[str, Any]:
        """Return a reasoning item without text that carries sealed state."""
        return self.new_item(at, "reasoning", summary=[], encrypted_content=token)

    def picture(self, at: int, block: Image) -> dict[str, Any]:
        """Return the item for a generated image.

        An image from this wire gets its original fields. An image from another wire gets a new
        item that contains its opaque state.
        """
        data = block.source.base64_data if isinstance(block.source, Inline) else ""
        if own := own_fields(block.continuity, "responses"):
            return {**own, "result": data}
        form = (block.media_type or "").removeprefix("image/")
        item = self.new_item(at, "image_generation_call", result=data, output_format=form)
        item["status"] = "completed"
        if block.continuity is not None:
            item["continuity"] = msgspec.to_builtins(block.continuity)
        return item

    def ending(self, complete: ev.MessageComplete) -> tuple[str, dict[str, Any]]:
        """Return the final status of a reply, and the fields that explain an incomplete reply."""
        word = self.finish_word(complete)
        is_unsound = complete.finish_reason == "error" and self.unsound is not None
        if complete.finish_reason in ("stop", "tool_calls") or word == "completed" or is_unsound:
            return "completed", {}
        return "incomplete", {"incomplete_details": {"reason": word}}

    def response(self, status: str, items: list[dict[str, Any]], **facts: Any) -> dict[str, Any]:
        """Return a response object, which is a body or a field of some events."""
        usage = self.usage_record(USAGE)
        return {
            "id": f"resp_{self.id}",
            "object": "response",
            "created_at": self.created,
            "completed_at": self.created + int(self.elapsed()) if status == "completed" else None,
            "status": status,
            "model": self.model,
            "output": items,
            **DEFAULTS,
            **self.asked.echo,
            "usage": merge(_COUNTS, usage) if usage else None,
            **facts,
        }


class _StreamEncoder(_Encoder):
    def __init__(self, asked: Asked, created: int) -> None:
        super().__init__(asked, created)
        self._items: list[dict[str, Any]] = []
        self._text: list[str] = []  # the text fragments of the open item
        self._texts: dict[int, int] = {}  # the position of each text block's item in the output
        self._number = 0
        self._block = -1  # the content_block_index of the open block
        self._open: dict[str, Any] | None = None
        self._state: Continuity | None = None  # the opaque state of the open item

    def begin(self, event: ev.MessageStart) -> bytes:
        response = self.response("in_progress", self._items)
        opening = self._event("response.created", response=response)
        return opening + self._event("response.in_progress", response=response)

    def text(self, event: ev.TextDelta) -> bytes:
        if event.content_block_index != self._block and not event.text:
            return self._carry(seal_text(event.continuity, "responses", alone=True))
        written = b""
        if event.text:
            own = _own_facts(event.continuity)
            written = self._add_text(event.content_block_index, event.text, **own)
        self._state = event.continuity or self._state
        return written

    def call_start(self, event: ev.ToolUseStart) -> bytes:
        carried = self._carry(seal_call(event.tool_use_id, event.continuity, "responses"))
        call = {"call_id": event.tool_use_id, **self.name_of(event.tool_name)}
        call = {**own_fields(event.continuity, "responses"), **call}
        kind = "function_call"
        empty = {"arguments": ""}
        if event.tool_name in self.asked.custom:
            kind = "custom_tool_call"
            empty = {"input": ""}
        return carried + self._begin(event.content_block_index, kind, **call, **empty)

    def call_input(self, event: ev.ToolUseInputDelta) -> bytes:
        if self._open is not None and self._open["type"] == "custom_tool_call":
            # The input is a string inside the JSON arguments, so it is sent once they are
            # complete.
            return b""
        kind = "response.function_call_arguments.delta"
        return self._about_item(kind, delta=event.partial_json)

    def write_end(self, complete: ev.MessageComplete) -> bytes:
        final = complete.final_content
        if self._open is not None and 0 <= self._block < len(final):
            # Citations that arrive at the end belong to the open text.
            self._state = final[self._block].continuity or self._state
            self._stateful.add(self._block)
        written = self._close() + self._cite(complete)
        # Opaque items and media are known only at the end of the message.
        for block in final:
            place = len(self._items)
            if isinstance(block, Opaque):
                written += self._add_item(write_opaque(block, "responses"))
            elif isinstance(block, Image) and isinstance(block.source, Inline):
                written += self._add_item(self.picture(place, block))
            elif isinstance(block, Audio | Image):
                written += self._add_text(_SPOKEN + place, describe_medium(block)) + self._close()
        for late in self.late_states(complete):
            written += self._carry(_seal_part(late))
        status, facts = self.ending(complete)
        response = self.response(status, self._items, **facts)
        return written + self._event(f"response.{status}", response=response)

    def _cite(self, complete: ev.MessageComplete) -> bytes:
        """Add citations that arrived at the end to text items that were complete before."""
        written = b""
        for number, block in enumerate(complete.final_content):
            at = self._texts.get(number)
            if at is None or not isinstance(block, Text):
                continue
            (part,) = self._items[at]["content"]
            if not part["annotations"]:
                part["annotations"] = _annotations_of(block)
                written += self._annotate(at, part["annotations"])
        return written

    def _annotate(self, at: int, annotations: list[Any]) -> bytes:
        """Return the events that add annotations to the text item ``at``."""
        written = b""
        for place, annotation in enumerate(annotations):
            fields = {"content_index": 0, "annotation_index": place, "annotation": annotation}
            kind = "response.output_text.annotation.added"
            written += self._event(kind, item_id=self._items[at]["id"], output_index=at, **fields)
        return written

    def write_error(self, error: ProviderError) -> bytes:
        record = error_record(error)
        # The failed response has no output, because a truncated item would look complete. OpenAI's
        # SDK raises no exception for response.failed, but does for an error event with an object,
        # so both are sent.
        code = record["code"]
        message = record["message"]
        known = _choose_code(error, record)
        why = {"code": known, "message": message, "type": code or record["type"]}
        failed = self._event("response.failed", response=self.response("failed", [], error=why))
        return failed + self._event("error", code=code, message=message, param=None, error=record)

    # --- private methods of the stream encoder

    def _begin(self, block: int, kind: str, **fields: Any) -> bytes:
        """Close the open output item and begin another."""
        closing = self._close()
        self._open = self.new_item(len(self._items), kind, **fields)
        self._block = block
        self._items.append(self._open)
        return closing + self._item("added")

    def _add_text(self, block: int, text: str, **own: Any) -> bytes:
        if block == self._block:
            self._text.append(text)
            self._number += 1
            return (
                self.before_text
                + encode_json(text)
                + b',"sequence_number":%d}\n\n' % (self._number - 1)
            )
        opening = self._begin(block, "message", role="assistant", content=[], **own)
        self._texts[block] = len(self._items) - 1
        part = _text_part("", [])
        opening += self._about_item("response.content_part.added", content_index=0, part=part)
        frame = self._about_item(
            "response.output_text.delta", content_index=0, logprobs=[], delta="\0"
        )
        self._number -= 1  # this frame is only a template and is not sent, so it gets no number
        self.frame_text(frame)
        return opening + self._add_text(block, text)

    def thinking(self, event: ev.ThinkingDelta) -> bytes:
        written = b""
        state = state_of(event)
        if event.redacted is not None:
            return self._carry(seal_hidden(event.redacted, event.continuity))
        if event.content_block_index != self._block or self._open is None:
            written = self._begin(
                event.content_block_index, "reasoning", summary=[], **_own_id(state)
            )
        self._state = state or self._state
        if event.text and not self._text:
            part = _summary_part("")
            written += self._about_item(
                "response.reasoning_summary_part.added", summary_index=0, part=part
            )
        if event.text:
            self._text.append(event.text)
            written += self._about_item(
                "response.reasoning_summary_text.delta", summary_index=0, delta=event.text
            )
        return written

    def call_end(self, event: ev.ToolUseEnd) -> bytes:
        item = self._items[-1]
        call = self.calls[-1]
        self._open = None
        self._block = -1
        if item["type"] == "custom_tool_call":
            return self._end_custom(item, call)
        item["arguments"] = call.arguments
        item["status"] = "incomplete"
        if event.problem in ("interrupted", "cancelled") or (call.is_blank and not call.is_object):
            # A truncated call, or a malformed one without input, gets no done event, which would
            # make it look complete.
            return b""
        item["status"] = "completed"
        facts = {"arguments": item["arguments"], "name": item["name"]}
        done = self._about_item("response.function_call_arguments.done", **facts)
        return done + self._item("done")

    def _end_custom(self, item: dict[str, Any], call: CallFacts) -> bytes:
        item["input"] = _input_of(call.text)
        if call.end.intent is None:
            item["status"] = "incomplete"
            return b""
        item["status"] = "completed"
        kind = "response.custom_tool_call_input"
        text = item["input"]
        delta = self._about_item(f"{kind}.delta", delta=text)
        return delta + self._about_item(f"{kind}.done", input=text) + self._item("done")

    def _close(self) -> bytes:
        item, self._open = self._open, None
        self._block = -1
        text = "".join(self._text)
        self._text = []
        state, self._state = self._state, None
        if item is None:
            return b""
        if item["type"] == "reasoning":
            return self._close_reasoning(item, text, state)
        shown = Text(text, state)
        part = _text_part(text, _annotations_of(shown))
        item |= _own_facts(state)
        item["content"] = [part]
        item["status"] = "completed"
        written = self._annotate(len(self._items) - 1, part["annotations"])
        place = {"content_index": 0}
        facts = {"text": text, "logprobs": []}
        written += self._about_item("response.output_text.done", **place, **facts)
        written += self._about_item("response.content_part.done", **place, part=part)
        carried = _seal_part(shown)
        return written + self._item("done") + self._carry(carried)

    def _close_reasoning(self, item: dict[str, Any], text: str, state: Continuity | None) -> bytes:
        self._items[-1] = self.reasoning(item, text, state)
        if not text:
            return self._item("done")
        kind = "response.reasoning_summary"
        done = self._about_item(f"{kind}_text.done", summary_index=0, text=text)
        part = _summary_part(text)
        done += self._about_item(f"{kind}_part.done", summary_index=0, part=part)
        return done + self._item("done")

    def _carry(self, token: str | None) -> bytes:
        """Write a reasoning item that carries the sealed state of a text or a call."""
        if token is None:
            return b""
        closing = self._close()
        return closing + self._add_item(self.carrier(len(self._items), token))

    def _add_item(self, item: dict[str, Any]) -> bytes:
        """Write an output item that is complete."""
        self._items.append(item)
        return self._item("added") + self._item("done")

    def _item(self, step: str) -> bytes:
        """Return the event that adds the last output item, or that it is done."""
        facts = {"output_index": len(self._items) - 1, "item": self._items[-1]}
        return self._event(f"response.output_item.{step}", **facts)

    def _about_item(self, kind: str, **fields: Any) -> bytes:
        """Return an event that refers to the last output item."""
        return self._event(
            kind, item_id=self._items[-1]["id"], output_index=len(self._items) - 1, **fields
        )

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return named_frame({"type": kind, **fields, "sequence_number": number})


class _BodyEncoder(_Encoder, BodyEncoder):
    def write_end(self, complete: ev.MessageComplete) -> bytes:
        calls = iter(self.calls)
        items: list[dict[str, Any]] = []
        for block in complete.final_content:
            token = _seal_part(block)
            if token is not None and isinstance(block, ToolCall):
                items.append(self.carrier(len(items), token))
            at = len(items)
            if isinstance(block, ToolCall):
                items.append(self._call(at, block, next(calls), complete))
            elif isinstance(block, Opaque):
                items.append(write_opaque(block, "responses"))
            elif isinstance(block, RedactedThinking):
                token = seal_hidden(block.data, block.continuity)
                items.append(self.carrier(at, token))
            elif isinstance(block, Image) and isinstance(block.source, Inline):
                items.append(self.picture(at, block))
            elif isinstance(block, Thinking):
                items += self._thought(at, block)
            elif not isinstance(block, Text) or block.text:
                items.append(self._text(at, block))
            if token is not None and isinstance(block, Text):
                items.append(self.carrier(len(items), token))
        status, facts = self.ending(complete)
        return encode_json(self.response(status, items, **facts))

    def _thought(self, at: int, block: Thinking) -> list[dict[str, Any]]:
        """Return the reasoning item of a thought; none if it has neither text nor state."""
        if not block.text and not has_state(block.continuity):
            return []
        item = self.new_item(at, "reasoning", summary=[], **_own_id(block.continuity))
        return [self.reasoning(item, block.text, block.continuity)]

    def _call(
        self, at: int, block: ToolCall, call: CallFacts, complete: ev.MessageComplete
    ) -> dict[str, Any]:
        is_cut = complete.finish_reason == "length" and not call.is_object
        facts = {"call_id": block.id, **self.name_of(block.name)}
        if block.name in self.asked.custom:
            item = self.new_item(at, "custom_tool_call", **facts, input=_input_of(call.text))
        else:
            item = self.new_item(at, "function_call", **facts, arguments=call.arguments)
        status = "incomplete" if is_cut else "completed"
        return {**item, **own_fields(block.continuity, "responses"), "status": status}

    def _text(self, at: int, block: Text | Audio | Image) -> dict[str, Any]:
        text = block.text if isinstance(block, Text) else describe_medium(block)
        part = _text_part(text, _annotations_of(block))
        own = _own_facts(block.continuity)
        item = self.new_item(at, "message", role="assistant", content=[part], **own)
        return {**item, "status": "completed"}


def _summary_part(text: str) -> dict[str, Any]:
    return {"type": "summary_text", "text": text}


def _own_id(state: Continuity | None) -> dict[str, str]:
    """Return the id that the issuer gave to a reasoning item, if it is known."""
    own = own_fields(state, "responses").get("id")
    return {"id": own} if own and isinstance(own, str) else {}


def _annotations_of(block: Text | Audio | Image) -> list[Any]:
    own = own_fields(block.continuity, "responses").get("annotations")
    return own or write_annotations(block, flat=True)


def _own_facts(state: Continuity | None) -> dict[str, Any]:
    """Return the fields of an item that only its issuer reads, such as the phase of a text."""
    own = own_fields(state, "responses")
    return {name: value for name, value in own.items() if name != "annotations"}


def _seal_part(block: AssistantBlock) -> str | None:
    if isinstance(block, ToolCall):
        return seal_call(block.id, block.continuity, "responses")
    if isinstance(block, Text):
        return seal_text(block.continuity, "responses", alone=not block.text)
    return None


def _text_part(text: str, annotations: list[Any]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": annotations, "logprobs": []}


# The first block index for texts that replace media, such as audio transcripts. It is higher than
# the index of any other block, so that each such text becomes a separate item.
_SPOKEN = 1_000_000
_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "image_generation_call": "ig",
}
# The codes of a failed response that clients act on. Codex repeats a request five times unless
# the code is one of the final ones (run with Codex 0.169.0 on 2026-11-18).
_FINAL = re.compile(r"\w+_policy(_violation)?|context_length_exceeded")
_REPEATED = ("server_error", "rate_limit_exceeded")


def _choose_code(error: ProviderError, record: dict[str, Any]) -> str:
    """Return the code of a failed response, so that clients repeat only what may succeed.

    OpenAI's specification has few codes. Any other code is sent in an extra field only, and
    ``invalid_prompt`` stands for it if the request must not be repeated.
    """
    kind: str = record["type"]
    code: str = record["code"] or ""
    if error.transient or kind == "server_error":
        return code if code in _REPEATED else "server_error"
    if kind == "insufficient_quota":
        return kind
    return code if _FINAL.fullmatch(code) else "invalid_prompt"


def _input_of(arguments: str) -> str:
    """Return the free-text input from the arguments of a function that replaces a custom tool."""
    found = ev.read_object(arguments)
    text = arguments if found is None else found.get("input", "")
    return text if isinstance(text, str) else json_text(text)


# The specification requires these counts, so unknown details are sent as zero.
_COUNTS: dict[str, Any] = {
    **dict.fromkeys(("input_tokens", "output_tokens", "total_tokens")),
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens_details": {"reasoning_tokens": 0},
}


_BODY = body_with_model(
    "input", **COMMON, input=TEXT_OR_PARTS, instructions=TEXT, max_output_tokens=COUNT
)


class ResponsesServer(ServerCodec):
    """The server side of the Responses wire."""

    wire: ClassVar[str] = "responses"
    terms = TERMS
    headers = HEADERS
    state_place = "encrypted_content"
    table: ClassVar[FieldTable] = TABLE
    schema = RequestSchema(_BODY, others={"/v1/responses/input_tokens": _BODY})
    paths = ("/v1/responses",)
    other_paths = ("/v1/responses/input_tokens",)
    base_path = "/v1"
    mentions_json = True
    read_request = staticmethod(read_request)
    stream_type = _StreamEncoder
    body_type = _BodyEncoder
    keeps_responses: ClassVar[bool] = True
    socket = ResponsesSocket()

    def is_count(self, path: str) -> bool:
        return path.endswith("/input_tokens")

    def write_count(self, count: int) -> bytes:
        return encode_json({"object": "response.input_tokens", "input_tokens": count})

    def list_problems(
        self, body: Mapping[str, Any], quirks: Any, *, reasons: bool, known: Collection[str]
    ) -> Iterator[str]:
        """Yield the forms of tools that the server or the model does not take.

        xAI and Azure refuse tools in input items (router-for-me/CLIProxyAPI#4434,
        openai/codex#31882), xAI refuses custom tools and namespaces (maximhq/bifrost#5428) and a
        field of the web search (NOirBRight/CodexHub#517), and each model takes one form of the
        computer tool.
        """
        items = body["input"] if isinstance(body["input"], list) else []
        if not quirks.additional_tools and any(item.get("type") == ADDED for item in items):
            yield f"Invalid value: '{ADDED}' of an input item."
        if quirks.tool_kinds == "functions" and needs_functions(body):
            yield "Unknown variant of tool: only functions and hosted tools are supported."
        if not quirks.external_web_access and any(ACCESS in tool for tool in list_tools(body)):
            yield f"Argument not supported: {ACCESS}"
        for kind in list_other_forms(body, SERVER_TOOLS, quirks):
            yield f"Tool '{kind}' is not supported with this model."

    def error_body(self, error: ProviderError) -> dict[str, Any]:
        return {"error": error_record(error)}
