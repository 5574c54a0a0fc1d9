"""Replies in LiteLLM's form: mappings whose items are also attributes."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any, ClassVar

import msgspec


class Record(dict[str, Any]):
    """A part of a reply: ``record.name`` and ``record["name"]`` are the same item.

    ``defaults`` are the items that a record has even if the server did not send them.
    """

    defaults: ClassVar[dict[str, Any]] = {}

    def __init__(self, *given: Any, **items: Any) -> None:
        found = self.defaults | dict(*given, **items)
        super().__init__({name: _convert(name, value) for name, value in found.items()})

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(f"{type(self).__name__} has no {name!r}; it has {', '.join(self)}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
        else:
            self[name] = value

    def model_dump(
        self, *, exclude_none: bool = False, exclude: Iterable[str] = (), **_: Any
    ) -> dict[str, Any]:
        """Return the items as plain dictionaries and lists."""
        return {
            name: _dump(value, exclude_none)
            for name, value in self.items()
            if name not in exclude and not (exclude_none and value is None)
        }

    to_dict = json = model_dump

    def model_dump_json(self, **settings: Any) -> str:
        """Return the items as JSON."""
        return msgspec.json.encode(self.model_dump(**settings)).decode()


def _dump(value: Any, exclude_none: bool) -> Any:
    if isinstance(value, Record):
        return value.model_dump(exclude_none=exclude_none)
    return [_dump(each, exclude_none) for each in value] if isinstance(value, list) else value


def _derive(name: str, *absent: str, **defaults: Any) -> type[Record]:
    return type(name, (Record,), {"defaults": dict.fromkeys(absent) | defaults})


_ABSENT = ("content", "tool_calls", "function_call")
Message = _derive("Message", *_ABSENT, role="assistant")
Delta = _derive("Delta", *_ABSENT, "role", "audio")
Choices = _derive("Choices", "logprobs", finish_reason="stop", index=0)
StreamingChoices = _derive("StreamingChoices", "finish_reason", "logprobs", index=0)
Function = _derive("Function", "name")
Usage = _derive(
    "Usage", "completion_tokens", "prompt_tokens", "total_tokens", "completion_tokens_details",
    "prompt_tokens_details",
)  # fmt: skip


class Reply(Record):
    """A reply or a chunk. ``_hidden_params`` has its cost and the parts that were not sent."""

    def __init__(self, *given: Any, **items: Any) -> None:
        super().__init__(*given, **items)
        self._hidden_params: dict[str, Any] = {"response_cost": None, "warnings": []}

    def note(self, cost: Decimal | None, **facts: Any) -> None:
        """Set the cost of the call, and further facts about it."""
        self._hidden_params |= {"response_cost": None if cost is None else float(cost), **facts}


class ModelResponse(Reply):
    """The complete reply of a chat model."""

    defaults: ClassVar = {"object": "chat.completion", "system_fingerprint": None, "usage": {}}


class ModelResponseStream(Reply):
    """A chunk of a streamed reply."""

    defaults: ClassVar = {"object": "chat.completion.chunk", "system_fingerprint": None}


class EmbeddingResponse(Reply):
    """The vectors of texts."""

    defaults: ClassVar = {"object": "list", "usage": {}}


_KINDS = {"message": Message, "delta": Delta, "usage": Usage, "function": Function}


def _convert(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_convert(name, each) for each in value]
    if not isinstance(value, dict) or isinstance(value, Record):
        return value
    if name == "choices":
        return StreamingChoices(value) if "delta" in value else Choices(value)
    return _KINDS.get(name, Record)(value)


def stream_chunk_builder(chunks: Iterable[ModelResponseStream], messages: Any = None) -> Any:
    """Return the complete reply that the chunks of a stream make up."""
    made: dict[str, Any] = {}
    message: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    finish = None
    for chunk in chunks:
        made |= {name: value for name, value in chunk.items() if value is not None}
        for choice in chunk.choices:
            finish = choice.finish_reason or finish
            _join(message, {n: choice.delta.get(n) for n in ("content", "reasoning_content")})
            for call in choice.delta.tool_calls or ():
                whole = calls.setdefault(call.index, {"id": call.get("id"), "type": "function"})
                _join(whole.setdefault("function", {}), call.function)
    message |= {"tool_calls": [calls[index] for index in sorted(calls)]} if calls else {}
    choices = [{"message": message, "finish_reason": finish}]
    return ModelResponse({**made, "object": "chat.completion", "choices": choices})


def _join(whole: dict[str, Any], part: dict[str, Any]) -> None:
    for name, text in part.items():
        if text is not None:
            whole[name] = whole.get(name, "") + text
