"""The Responses wire, server side. It is stateless: each request has the complete conversation."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import msgspec

from ... import events as ev
from ...errors import ProviderError
from ...messages import Audio, Image, Inline, Opaque, Text, Thinking, ToolCall
from ..json import json_text
from ..losses import merge
from ..media import describe_medium, write_annotations
from ..openai.server import error_record
from ..rules import FieldTable
from ..seal import own_fields, write_opaque
from ..server import (
    Asked,
    BodyEncoder,
    CallFacts,
    ReplyEncoder,
    ServerCodec,
    encode_json,
    named_frame,
)
from .echo import DEFAULTS
from .reply import USAGE
from .server_request import TABLE, read_request

# --- writing replies for clients ---------------------------------------------------------------


class _Encoder(ReplyEncoder):
    wire = "responses"

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

    def picture(self, at: int, block: Image) -> dict[str, Any]:
        """Return the item for a generated image.

        An image from this wire gets its original fields. An image from another wire gets a new
        item that contains its opaque state.
        """
        data = block.source.base64_data if isinstance(block.source, Inline) else ""
        if own := own_fields(block, "responses"):
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
        self._annotations: list[Any] = []  # the annotations of the open text item
        self._number = 0
        self._block = -1  # the content_block_index of the open block
        self._open: dict[str, Any] | None = None

    def begin(self, event: ev.MessageStart) -> bytes:
        response = self.response("in_progress", self._items)
        opening = self._event("response.created", response=response)
        return opening + self._event("response.in_progress", response=response)

    def text(self, event: ev.TextDelta) -> bytes:
        return self._add_text(event.content_block_index, event.text)

    def call_start(self, event: ev.ToolUseStart) -> bytes:
        call = {"call_id": event.tool_use_id, **self.name_of(event.tool_name)}
        if event.tool_name in self.asked.custom:
            return self._begin(event.content_block_index, "custom_tool_call", **call, input="")
        return self._begin(event.content_block_index, "function_call", **call, arguments="")

    def call_input(self, event: ev.ToolUseInputDelta) -> bytes:
        if self._open is not None and self._open["type"] == "custom_tool_call":
            # The input is a string inside the JSON arguments, so it is sent once they are
            # complete.
            return b""
        kind = "response.function_call_arguments.delta"
        return self._about_item(kind, delta=event.partial_json)

    def write_end(self, complete: ev.MessageComplete) -> bytes:
        written = self._cite(complete) + self._close()
        # Opaque items and media are known only at the end of the message.
        for block in complete.final_content:
            place = len(self._items)
            if isinstance(block, Opaque):
                written += self._add_item(write_opaque(block, "responses"))
            elif isinstance(block, Image) and isinstance(block.source, Inline):
                written += self._add_item(self.picture(place, block))
            elif isinstance(block, Audio | Image):
                written += self._add_text(_SPOKEN + place, describe_medium(block)) + self._close()
        status, facts = self.ending(complete)
        response = self.response(status, self._items, **facts)
        return written + self._event(f"response.{status}", response=response)

    def _cite(self, complete: ev.MessageComplete) -> bytes:
        """Add citations to the text items that the client has already received.

        The citations are known only at the end of the reply.
        """
        written = b""
        for number, block in enumerate(complete.final_content):
            at = self._texts.get(number)
            if at is None or not isinstance(block, Text):
                continue
            item, own = self._items[at], own_fields(block, "responses")
            annotations = own.pop("annotations", []) or write_annotations(block, flat=True)
            item.update(own)
            part = item["content"][0] if item["content"] else None
            if part is not None:
                part["annotations"] = annotations
            else:
                self._annotations = annotations
            for place, annotation in enumerate(annotations):
                fields = {"content_index": 0, "annotation_index": place, "annotation": annotation}
                kind = "response.output_text.annotation.added"
                written += self._event(kind, item_id=item["id"], output_index=at, **fields)
        return written

    def write_error(self, error: ProviderError) -> bytes:
        record = error_record(error)
        # The failed response has no output, because a truncated item would look complete. OpenAI's
        # SDK raises no exception for response.failed, but does for an error event with an object,
        # so both are sent.
        code, message = record["code"], record["message"]
        known = _choose_code(error, record)
        why = {"code": known, "message": message, "type": code or record["type"]}
        failed = self._event("response.failed", response=self.response("failed", [], error=why))
        return failed + self._event("error", code=code, message=message, param=None, error=record)

    # --- private methods of the stream encoder

    def _begin(self, block: int, kind: str, **fields: Any) -> bytes:
        """Close the open output item and begin another."""
        closing = self._close()
        self._open, self._block = self.new_item(len(self._items), kind, **fields), block
        self._items.append(self._open)
        return closing + self._item("added")

    def _add_text(self, block: int, text: str) -> bytes:
        if block == self._block:
            self._text.append(text)
            self._number += 1
            return (
                self.before_text
                + encode_json(text)
                + b',"sequence_number":%d}\n\n' % (self._number - 1)
            )
        self._texts[block] = len(self._items)
        opening = self._begin(block, "message", role="assistant", content=[])
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
        if event.content_block_index != self._block or self._open is None:
            written = self._begin(event.content_block_index, "reasoning", summary=[])
            part = {"type": "summary_text", "text": ""}
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
        item, call, self._open, self._block = self._items[-1], self.calls[-1], None, -1
        if item["type"] == "custom_tool_call":
            return self._end_custom(item, call)
        item["arguments"], item["status"] = call.arguments, "incomplete"
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
        kind, text = "response.custom_tool_call_input", item["input"]
        delta = self._about_item(f"{kind}.delta", delta=text)
        return delta + self._about_item(f"{kind}.done", input=text) + self._item("done")

    def _close(self) -> bytes:
        item, self._open, self._block = self._open, None, -1
        text, self._text = "".join(self._text), []
        if item is None:
            return b""
        if item["type"] == "reasoning":
            part: dict[str, Any] = {"type": "summary_text", "text": text}
            item["summary"] = [part]
            kind, place = "reasoning_summary", {"summary_index": 0}
            done = self._about_item(f"response.{kind}_text.done", **place, text=text)
        else:
            annotations, self._annotations = self._annotations, []
            part = _text_part(text, annotations)
            item["content"], item["status"] = [part], "completed"
            kind, place = "content", {"content_index": 0}
            facts = {"text": text, "logprobs": []}
            done = self._about_item("response.output_text.done", **place, **facts)
        done += self._about_item(f"response.{kind}_part.done", **place, part=part)
        return done + self._item("done")

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
            if isinstance(block, ToolCall):
                items.append(self._call(len(items), block, next(calls), complete))
            elif isinstance(block, Opaque):
                items.append(write_opaque(block, "responses"))
            elif isinstance(block, Image) and isinstance(block.source, Inline):
                items.append(self.picture(len(items), block))
            elif isinstance(block, Text | Audio | Image):
                items.append(self._text(len(items), block))
            elif isinstance(block, Thinking):
                own = own_fields(block, "responses")
                summary = [{"type": "summary_text", "text": block.text}]
                items.append(
                    own
                    if own.get("type") == "reasoning"
                    else self.new_item(len(items), "reasoning", summary=summary)
                )
        status, facts = self.ending(complete)
        return encode_json(self.response(status, items, **facts))

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
        return {**item, **own_fields(block, "responses"), "status": status}

    def _text(self, at: int, block: Text | Audio | Image) -> dict[str, Any]:
        own = own_fields(block, "responses")
        annotations = own.pop("annotations", []) or write_annotations(block, flat=True)
        text = block.text if isinstance(block, Text) else describe_medium(block)
        part = _text_part(text, annotations)
        item = self.new_item(at, "message", role="assistant", content=[part], **own)
        return {**item, "status": "completed"}


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
# The codes of a failed response that clients act on. Codex repeats a request five times unless the
# code is one of the final ones (run with Codex 0.169.0 on 2026-11-18).
_FINAL = re.compile(r"\w+_policy(_violation)?|context_length_exceeded")
_REPEATED = ("server_error", "rate_limit_exceeded")


def _choose_code(error: ProviderError, record: dict[str, Any]) -> str:
    """Return the code of a failed response, so that clients repeat only what may succeed.

    OpenAI's specification has few codes. Any other code is sent in an extra field only, and
    ``invalid_prompt`` stands for it if the request must not be repeated.
    """
    kind, code = record["type"], record["code"] or ""
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


class ResponsesServer(ServerCodec):
    """The server side of the Responses wire."""

    wire: ClassVar[str] = "responses"
    table: ClassVar[FieldTable] = TABLE
    paths = ("/v1/responses",)
    other_paths = ("/v1/responses/input_tokens",)
    base_path = "/v1"
    mentions_json = True
    read_request = staticmethod(read_request)
    stream_type = _StreamEncoder
    body_type = _BodyEncoder
    keeps_responses: ClassVar[bool] = True

    def is_count(self, path: str) -> bool:
        return path.endswith("/input_tokens")

    def write_count(self, count: int) -> bytes:
        return encode_json({"object": "response.input_tokens", "input_tokens": count})

    def error_body(self, error: ProviderError) -> dict[str, Any]:
        return {"error": error_record(error)}
