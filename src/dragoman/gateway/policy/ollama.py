"""The rule for each field of a request to Ollama's own API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from .openai import name_of
from .rules import NOTHING, Prepared, Rule, Sorter, is_among

_READ = Rule("read")

NAMES = {
    "max_tokens": "options.num_predict",
    "stop_sequences": "options.stop",
    "seed": "options.seed",
    "frequency_penalty": "options.frequency_penalty",
    "presence_penalty": "options.presence_penalty",
    "top_k": "options.top_k",
    "min_p": "options.min_p",
    "repeat_penalty": "options.repeat_penalty",
    "reasoning": "think",
    "json_mode": "format",
}
TOGETHER = ("messages",)
FIELDS: dict[str, Rule] = {
    **dict.fromkeys(("model", "messages", "stream", "tools", "format", "options", "think"), _READ),
    "keep_alive": Rule(
        "hint", "how long a model stays in memory is the endpoint's setting", always=True
    ),
    "logprobs": Rule("refused", "ask a model of the same wire, or leave it out", default=(False,)),
    "top_logprobs": Rule("refused", "ask a model of the same wire, or leave it out", default=(0,)),
    "truncate": Rule("hint", "a conversation that is too long is refused", default=(True,)),
    "shift": Rule("hint", "a conversation that is too long is refused", default=(True,)),
}
FIELDS |= {  # fields of /api/generate that /api/chat does not have
    "suffix": Rule(
        "refused", "ask for the text in between with a prompt of your own", always=True
    ),
    "context": Rule("refused", "send the conversation to /api/chat", always=True),
    "template": Rule("hint", "the model's server has its own template", always=True),
    "raw": Rule("hint", "the model's server has its own template", default=(False,), always=True),
}
OPTIONS: dict[str, Rule] = {
    **dict.fromkeys(
        (
            "temperature",
            "num_predict",
            "top_p",
            "seed",
            "frequency_penalty",
            "presence_penalty",
            "stop",
        ),
        _READ,
    ),
    "top_k": Rule("mapped", concept="top_k"),
    "min_p": Rule("mapped", default=(0,), concept="min_p"),
    "repeat_penalty": Rule("mapped", concept="repeat_penalty"),
}


def prepare(body: Mapping[str, Any]) -> Prepared:
    """Return the request body in a form that the server codec of this wire can decode."""
    sorter = Sorter(FIELDS, TOGETHER)
    made = sorter.sort_root(body)
    if isinstance(made.get("messages"), list):
        names = (
            "role",
            "content",
            "images",
            "thinking",
            "tool_calls",
            "tool_name",
            "tool_call_id",
        )
        talk = enumerate(made["messages"])
        made["messages"] = [
            _sort_calls(sorter.keep(message, f"messages[{at}]", names))
            if isinstance(message, dict)
            else message
            for at, message in talk
        ]
        _forget_ids(made["messages"])
    if isinstance(made.get("tools"), list):
        made["tools"] = [
            _sort_tool(tool, f"tools[{at}]", sorter) for at, tool in enumerate(made["tools"])
        ]
    if isinstance(made.get("options"), dict):
        made["options"] = _sort_options(made["options"], sorter)
    if made.get("format") == "json":
        del made["format"]
        sorter.wish("json_mode", True)
    return sorter.done(made, body)


def _sort_calls(message: dict[str, Any]) -> dict[str, Any]:
    """Remove the fields of a message's tool calls that the server codec would reject."""
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        message["tool_calls"] = [
            {name: call[name] for name in ("id", "function") if name in call}
            if isinstance(call, dict)
            else call
            for call in calls
        ]
    return message


def _forget_ids(messages: list[Any]) -> None:
    """Remove the call id of a tool result if no call has that id.

    litellm sends ids with results but not with calls. Results are then matched to calls by their
    order.
    """
    records = [message for message in messages if isinstance(message, dict)]
    lists = [
        message["tool_calls"] for message in records if isinstance(message.get("tool_calls"), list)
    ]
    known = [call.get("id") for calls in lists for call in calls if isinstance(call, dict)]
    for message in records:
        if message.get("tool_call_id") not in known:
            message.pop("tool_call_id", None)


def _sort_tool(tool: Any, path: str, sorter: Sorter) -> Any:
    if (
        not isinstance(tool, dict)
        or name_of(tool) is None
        or not isinstance(tool.get("function"), dict)
    ):
        return tool
    made = sorter.keep(tool, path, ("type", "function"))
    made["function"] = sorter.keep(
        tool["function"], f"{path}.function", ("name", "description", "parameters")
    )
    return made


def _sort_options(options: dict[str, Any], sorter: Sorter) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    own: dict[str, Any] = {}
    for name, value in options.items():
        rule = OPTIONS.get(name)
        if rule is not None and rule.effect == "read":
            kept[name] = value
        elif is_among(value, NOTHING) or (rule is not None and is_among(value, rule.default)):
            continue
        elif rule is not None and rule.concept is not None:
            sorter.wish(rule.concept, value)
        else:
            sorter.leave(f"options.{name}")
            own[name] = value
    if own:
        sorter.own["options"] = own
        sorter.left = [
            left if left.roots != ("options",) else replace(left, roots=()) for left in sorter.left
        ]
    if kept.get("num_predict") in (-1, -2):  # -1 and -2 mean "no limit", which is the default
        del kept["num_predict"]
    return kept
