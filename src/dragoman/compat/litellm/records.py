"""Replies in LiteLLM's form: mappings whose items are also attributes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from .names import read_table


class AttributeRecord(dict[str, Any]):
    """A part of a reply: ``record.name`` and ``record["name"]`` are the same item.

    Some items exist even if the server did not send them; ``catalog/litellm.json`` lists them.
    """

    def __init__(self, *given: Any, **items: Any) -> None:
        found = read_table().records.get(type(self).__name__, {}) | dict(*given, **items)
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
        keep = lambda items: {n: v for n, v in items if not (exclude_none and v is None)}
        found: dict[str, Any] = json.loads(json.dumps(self), object_pairs_hook=keep)
        return {name: value for name, value in found.items() if name not in exclude}

    to_dict = json = model_dump

    def model_dump_json(self, **settings: Any) -> str:
        """Return the items as JSON."""
        return json.dumps(self.model_dump(**settings), ensure_ascii=False)


class ModelReply(AttributeRecord):
    """A reply or a chunk. ``_hidden_params`` has its cost and the parts that were not sent."""

    def __init__(self, *given: Any, **items: Any) -> None:
        super().__init__(*given, **items)
        self._hidden_params: dict[str, Any] = {"response_cost": None, "warnings": []}

    def note(self, cost: Decimal | None, **facts: Any) -> None:
        """Set the cost of the call, and further facts about it."""
        self._hidden_params |= {"response_cost": None if cost is None else float(cost), **facts}

    def note_as(self, other: ModelReply) -> None:
        """Set the same facts as another reply has."""
        self._hidden_params |= other._hidden_params

    def find_model(self, default: str) -> str:
        """Return the vendor's name of the model that answered."""
        found: str = self._hidden_params.get("litellm_model_name", default)
        return found

    def find_cost(self) -> float | None:
        """Return the cost of the call in US dollars, if it is known."""
        cost: float | None = self._hidden_params["response_cost"]
        return cost


class ModelResponse(ModelReply):
    """The complete reply of a chat model."""


class ModelResponseStream(ModelReply):
    """A chunk of a streamed reply."""


class EmbeddingResponse(ModelReply):
    """The vectors of texts."""


Message, Delta, Usage, Function, Choices, StreamingChoices = [
    type(name, (AttributeRecord,), {})
    for name in ("Message", "Delta", "Usage", "Function", "Choices", "StreamingChoices")
]
_KINDS = {"message": Message, "delta": Delta, "usage": Usage, "function": Function}


def _convert(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_convert(name, each) for each in value]
    if not isinstance(value, dict) or isinstance(value, AttributeRecord):
        return value
    if name == "choices":
        return StreamingChoices(value) if "delta" in value else Choices(value)
    return _KINDS.get(name, AttributeRecord)(value)


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
            if (function := choice.delta.get("function_call")) is not None:
                _join(message.setdefault("function_call", {}), function)
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
