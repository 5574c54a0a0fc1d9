"""The rule for each field of a Chat Completions request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...events import read_object
from ...messages import DETAILS, EFFORTS
from .hosted import read_hosted
from .rules import NOTHING, Prepared, Rule, Sorter, is_among

_READ = Rule("read")
_HINT = Rule("hint", "it does not change what the answer means")
_ONE = Rule("hint", "one choice is returned for each call", default=(1,), always=True)
_LOGPROBS = Rule("refused", "ask a model of the same wire, or leave it out", default=(False, 0))
_SEARCH = Rule("refused", "search with a tool of your own, or ask a model of the same wire")

NAMES = {"stop_sequences": "stop", "reasoning": "reasoning_effort", "json_mode": "response_format"}
TOGETHER = ("messages",)
FIELDS: dict[str, Rule] = {
    **dict.fromkeys(
        [
            "model",
            "messages",
            "stream",
            "stream_options",
            "tools",
            "tool_choice",
            "response_format",
            "max_tokens",
            "max_completion_tokens",
            "temperature",
            "top_p",
            "seed",
            "frequency_penalty",
            "presence_penalty",
            "stop",
            "reasoning_effort",
        ],
        _READ,
    ),
    "n": _ONE,
    "parallel_tool_calls": Rule("mapped", concept="parallel_tool_calls"),
    "verbosity": Rule("mapped", default=("medium",), concept="verbosity"),
    "user": Rule("mapped", concept="user"),
    "prompt_cache_key": Rule("mapped", concept="prompt_cache_key"),
    "prompt_cache_retention": Rule("mapped", concept="prompt_cache_retention"),
    "safety_identifier": Rule("mapped", concept="safety_identifier"),
    "service_tier": Rule("mapped", default=("auto", "default"), concept="service_tier"),
    "top_k": Rule("mapped", concept="top_k"),
    "min_p": Rule("mapped", default=(0,), concept="min_p"),
    "repetition_penalty": Rule("mapped", default=(1,), concept="repeat_penalty"),
    "repeat_penalty": Rule("mapped", default=(1,), concept="repeat_penalty"),
    "store": Rule("hint", "nothing is kept of a chat completion", default=(False,)),
    "metadata": _HINT,
    "logit_bias": Rule("hint", "the model's wire cannot weigh single tokens"),
    "prediction": Rule("hint", "it only makes the answer faster"),
    "logprobs": _LOGPROBS,
    "top_logprobs": _LOGPROBS,
    "modalities": Rule("refused", "ask for text only", default=(["text"],)),
    "audio": Rule("refused", "ask for text only"),
    "web_search_options": _SEARCH,
    "functions": Rule("refused", "use tools, its newer name"),
    "function_call": Rule("refused", "use tool_choice, its newer name"),
    "reasoning": Rule("mapped", "the effort or budget is translated"),
    "thinking": Rule("mapped", "the switch is translated"),
    "enable_thinking": Rule("mapped", "the switch is translated"),
    "chat_template_kwargs": Rule("mapped", "enable_thinking is translated"),
}
_NAME = {"name": Rule("hint", "the model's wire has no names of participants")}
_ROLES: dict[str, tuple[str, ...]] = {
    "system": ("role", "content"),
    "developer": ("role", "content"),
    "user": ("role", "content"),
    "assistant": ("role", "content", "tool_calls", "reasoning_content", "reasoning", "refusal"),
    "tool": ("role", "content", "tool_call_id"),
}
_CACHE = {"cache_control": Rule("hint", "each endpoint sets its own marks for the prompt cache")}
_MESSAGE = _NAME | _CACHE
_PARTS: dict[str, tuple[str, ...]] = {
    "text": ("type", "text"),
    "image_url": ("type", "image_url"),
    "file": ("type", "file"),
    "input_audio": ("type", "input_audio"),
    "refusal": ("type", "refusal"),
}
_PART = Rule("refused", "send text, images or files")


def prepare(body: Mapping[str, Any]) -> Prepared:
    """Return the request body in a form that the server codec of this wire can decode."""
    sorter = Sorter(FIELDS, TOGETHER)
    search = body.get("web_search_options")
    if search is None:
        made = sorter.sort_root(body)
    else:
        made = sorter.sort_root({**body, "web_search_options": None})
        hosted = read_hosted("openai", "web_search_options", search)
        sorter.leave("web_search_options", _SEARCH, hosted=hosted)
    _sort_reasoning(made, body, sorter)
    if isinstance(made.get("messages"), list):
        made["messages"] = [
            _sort_message(each, f"messages[{at}]", sorter)
            for at, each in enumerate(made["messages"])
        ]
    if isinstance(made.get("tools"), list):
        made["tools"] = _sort_tools(made["tools"], sorter)
    _sort_choice(made, sorter)
    _sort_format(made, sorter)
    _sort_stream_options(made, sorter)
    return sorter.done(made, body)


def _sort_reasoning(made: dict[str, Any], body: Mapping[str, Any], sorter: Sorter) -> None:
    """Convert the fields for reasoning, which differ between the servers of this wire."""
    effort = made.get("reasoning_effort")
    if isinstance(effort, str) and effort not in EFFORTS:
        del made["reasoning_effort"]
        sorter.own["reasoning_effort"] = effort
        sorter.wish("reasoning", "xhigh" if effort == "max" else None)
    wanted = None if _SPELLINGS.isdisjoint(body) else _read_reasoning(body)
    if wanted is None:
        return
    sorter.left = [left for left in sorter.left if left.path not in _SPELLINGS]
    sorter.own |= {name: body[name] for name in _SPELLINGS if body.get(name) is not None}
    if effort is None:
        sorter.wish("reasoning", wanted)


_SPELLINGS = frozenset({"reasoning", "thinking", "enable_thinking", "chat_template_kwargs"})


def _read_reasoning(body: Mapping[str, Any]) -> str | int | None:
    reasoning, thinking, options = (
        body.get(name) for name in ("reasoning", "thinking", "chat_template_kwargs")
    )
    switch = body.get("enable_thinking")
    if isinstance(reasoning, dict):
        effort, budget = reasoning.get("effort"), reasoning.get("max_tokens")
        if effort in EFFORTS or (type(budget) is int and budget > 0):
            return effort or budget
        switch = reasoning.get("enabled", switch)
    if isinstance(thinking, dict) and thinking.get("type") in ("enabled", "disabled"):
        switch = thinking["type"] == "enabled"
    if isinstance(options, dict) and set(options) == {"enable_thinking"}:
        switch = options["enable_thinking"]
    if not isinstance(switch, bool):
        return None
    return "medium" if switch else "none"


# --- preparing messages ------------------------------------------------------------------------


def _sort_message(message: Any, path: str, sorter: Sorter) -> Any:
    role = message.get("role") if isinstance(message, dict) else None
    if not isinstance(role, str) or role not in _ROLES:
        # leave an invalid message unchanged: the server codec rejects it with an error
        return message
    made = sorter.keep(message, path, _ROLES[role], _MESSAGE)
    if isinstance(made.get("content"), list):
        parts = enumerate(made["content"])
        made["content"] = [
            _sort_part(part, f"{path}.content[{at}]", role, sorter) for at, part in parts
        ]
    if isinstance(made.get("tool_calls"), list):
        calls = enumerate(made["tool_calls"])
        made["tool_calls"] = [
            _sort_call(call, f"{path}.tool_calls[{at}]", sorter) for at, call in calls
        ]
    return made


def _sort_part(part: Any, path: str, role: str, sorter: Sorter) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str) or not isinstance(part, dict):
        return part
    file = part.get("file")
    if kind not in _PARTS or (isinstance(file, dict) and file.get("file_id") is not None):
        if kind in ("image", "document", "thinking", "redacted_thinking", "tool_call", "opaque"):
            return part  # the server codec also accepts Dragoman's own block types
        sorter.leave(path, _PART, "content_dropped")
        return {"type": "text", "text": "[content of another kind]"}
    made = sorter.keep(part, path, _PARTS[kind], _CACHE)
    image = made.get("image_url")
    if isinstance(image, dict):
        made["image_url"] = image = sorter.keep(image, f"{path}.image_url", ("url", "detail"))
        if image.get("detail") not in (None, *DETAILS):
            sorter.leave(f"{path}.image_url.detail")
            del image["detail"]
    if isinstance(made.get("file"), dict):
        made["file"] = sorter.keep(made["file"], f"{path}.file", ("filename", "file_data"))
    return made


def _sort_call(call: Any, path: str, sorter: Sorter) -> Any:
    if not isinstance(call, dict):
        return call
    if call.get("type") == "custom" and isinstance(call.get("custom"), dict):
        sorter.leave(
            path, Rule("hint", "it is sent as a call of a function"), "custom_call_rewritten"
        )
        custom = call["custom"]
        arguments = {"input": custom.get("input")}
        return {
            "id": call.get("id"),
            "type": "function",
            "function": {"name": custom.get("name"), "arguments": arguments},
        }
    made = sorter.keep(
        call,
        path,
        ("id", "type", "function", "index", "name", "arguments", "signature", "continuity"),
    )
    function = made.get("function")
    if isinstance(function, dict):
        made["function"] = function = sorter.keep(
            function, f"{path}.function", ("name", "arguments")
        )
        function["arguments"] = sort_arguments(
            function.get("arguments"), f"{path}.function.arguments", sorter
        )
    return made


def sort_arguments(value: Any, path: str, sorter: Sorter) -> Any:
    """Return a tool call's arguments; text that is not a JSON object is wrapped in an object."""
    if not isinstance(value, str) or not value.strip() or read_object(value) is not None:
        return value
    sorter.leave(
        path,
        Rule("hint", "the text is not a JSON object, and is sent inside one"),
        "arguments_rewritten",
    )
    return {"arguments": value}


# --- preparing tools and the response format ---------------------------------------------------


def _sort_tools(tools: list[Any], sorter: Sorter) -> list[Any]:
    made = []
    for at, tool in enumerate(tools):
        path = f"tools[{at}]"
        kind = tool.get("type", "function") if isinstance(tool, dict) else "function"
        if kind != "function":
            sorter.leave(path, Rule("refused", "give the tool as a function"), "tool_dropped")
        elif isinstance(tool, dict) and isinstance(tool.get("function"), dict):
            kept = sorter.keep(tool, path, ("type", "function"), _CACHE)
            names = ("name", "description", "parameters", "strict")
            kept["function"] = sorter.keep(tool["function"], f"{path}.function", names)
            made.append(kept)
        elif isinstance(tool, dict):
            made.append(
                sorter.keep(
                    tool, path, ("type", "name", "description", "parameters", "strict"), _CACHE
                )
            )
        else:
            made.append(tool)
    return made


def _sort_choice(made: dict[str, Any], sorter: Sorter) -> None:
    choice = made.get("tool_choice")
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return
    inner = choice.get("allowed_tools")
    inner = inner if isinstance(inner, dict) else choice
    sorter.own |= {"tool_choice": choice}
    keep_allowed(made, inner, sorter)


def keep_allowed(made: dict[str, Any], choice: Any, sorter: Sorter) -> None:
    """Remove the tools that the tool choice does not allow.

    Other wires cannot restrict the choice to some of the offered tools.
    """
    listed = choice.get("tools") if isinstance(choice.get("tools"), list) else []
    names = [name_of(tool) for tool in listed if isinstance(tool, dict)]
    made["tool_choice"] = "required" if choice.get("mode") == "required" else "auto"
    if isinstance(made.get("tools"), list):
        sorter.own["tools"] = made["tools"]
        made["tools"] = [tool for tool in made["tools"] if name_of(tool) in names]


def name_of(tool: Any) -> Any:
    """Return the name of a tool, which may be nested in the field ``function``."""
    if not isinstance(tool, dict):
        return None
    inner = tool.get("function")
    return inner.get("name") if isinstance(inner, dict) else tool.get("name")


def _sort_format(made: dict[str, Any], sorter: Sorter) -> None:
    form = made.get("response_format")
    if not isinstance(form, dict):
        return
    if form.get("type") == "json_object":
        del made["response_format"]
        sorter.wish("json_mode", True)
    elif form.get("type") == "json_schema" and isinstance(form.get("json_schema"), dict):
        names = ("name", "schema", "strict")
        made["response_format"] = {
            "type": "json_schema",
            "json_schema": sorter.keep(form["json_schema"], "response_format.json_schema", names),
        }
    elif form.get("type") != "text":
        del made["response_format"]
        sorter.leave("response_format", Rule("refused", "use json_schema or json_object"))


def _sort_stream_options(made: dict[str, Any], sorter: Sorter) -> None:
    options = made.get("stream_options")
    if not isinstance(options, dict):
        return
    if made.get("stream") is not True or is_among(options, NOTHING):
        del made["stream_options"]
    else:
        made["stream_options"] = sorter.keep(
            options, "stream_options", ("include_usage", "include_obfuscation")
        )
