"""The rule for each field of a Responses request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from ...messages import DETAILS, EFFORTS
from .hosted import read_hosted
from .openai import keep_allowed, sort_arguments
from .rules import Prepared, Rule, Sorter

_READ = Rule("read")
_HINT = Rule("hint", "it does not change what the answer means")
_STATE = Rule("refused", "send the whole conversation as input, or start the gateway with --store")

NAMES = {
    "max_tokens": "max_output_tokens",
    "reasoning": "reasoning.effort",
    "json_mode": "text.format",
}
TOGETHER = ("input", "instructions")
FIELDS: dict[str, Rule] = {
    **dict.fromkeys(
        [
            "model",
            "input",
            "instructions",
            "stream",
            "tools",
            "tool_choice",
            "text",
            "max_output_tokens",
            "temperature",
            "top_p",
            "reasoning",
        ],
        _READ,
    ),
    "parallel_tool_calls": Rule("mapped", concept="parallel_tool_calls"),
    "user": Rule("mapped", concept="user"),
    "prompt_cache_key": Rule("mapped", concept="prompt_cache_key"),
    "prompt_cache_retention": Rule("mapped", concept="prompt_cache_retention"),
    "safety_identifier": Rule("mapped", concept="safety_identifier"),
    "service_tier": Rule("mapped", default=("auto", "default"), concept="service_tier"),
    "top_logprobs": Rule("refused", "ask a model of the same wire, or leave it out", default=(0,)),
    "truncation": Rule(
        "hint", "a conversation that is too long is refused", default=("disabled",)
    ),
    "include": Rule(
        "hint",
        "the model's wire has nothing of the kind",
        default=(["reasoning.encrypted_content"],),
    ),
    "max_tool_calls": Rule("hint", "it limits the tools that a server runs by itself"),
    "metadata": _HINT,
    "client_metadata": _HINT,
    "stream_options": Rule(
        "hint", "no padding is sent", default=({"include_obfuscation": False},), always=True
    ),
    "store": Rule(
        "hint",
        "nothing is kept here between calls; see --store",
        default=(False, True),
        always=True,
    ),
    "background": Rule("refused", "start the gateway with --store", default=(False,), always=True),
    "previous_response_id": Rule(_STATE.effect, _STATE.what, always=True),
    "conversation": Rule(_STATE.effect, _STATE.what, always=True),
    "prompt": Rule(
        "refused", "prompts are not kept here; send the text of the prompt", always=True
    ),
}
_ITEM = Rule("refused", "send messages, calls of functions and their outputs")
_REFERENCE = Rule(
    "refused",
    "send the item itself (store: false), or start the gateway with --store",
    always=True,
)
_HOSTED = Rule("refused", "offer tools of type function, or ask a model of the same wire")
_OFFERED = Rule("hint", "the model's server does not run it; the other functions are offered")
_FUNCTION = {
    "defer_loading": Rule("hint", "every tool is offered at once", default=(False,)),
    "allowed_callers": Rule("hint", "the model calls every tool directly", default=(["direct"],)),
}
_JOINED = Rule("mapped", "the namespace is a part of the function's name")
_PARTS = (
    "input_text",
    "output_text",
    "text",
    "input_image",
    "input_file",
    "refusal",
    "input_audio",
)
_CALLS = ("custom_tool_call", "local_shell_call", "shell_call", "apply_patch_call")


def prepare(body: Mapping[str, Any]) -> Prepared:
    """Return the request body in a form that the server codec of this wire can decode."""
    sorter = Sorter(FIELDS, TOGETHER)
    made = sorter.sort_root(body)
    if isinstance(made.get("input"), list):
        items = [_sort_item(item, f"input[{at}]", sorter) for at, item in enumerate(made["input"])]
        made["input"] = [item for item in items if item is not None]
    if isinstance(made.get("instructions"), list):
        made["input"] = [*made.pop("instructions"), *as_items(made.get("input"))]
    if isinstance(made.get("tools"), list):
        made["tools"] = _sort_tools(made["tools"], sorter)
    _sort_choice(made, sorter)
    _sort_text(made, sorter)
    _sort_reasoning(made, sorter)
    return sorter.done(made, body)


def as_items(given: Any) -> list[Any]:
    """Return the input as a list of items; a string becomes one item."""
    if isinstance(given, list):
        return given
    return [] if given is None else [{"role": "user", "content": given}]


def _sort_item(item: Any, path: str, sorter: Sorter) -> Any:
    kind = item.get("type", "message") if isinstance(item, dict) else None
    if kind == "message":
        made = sorter.keep(item, path, ("type", "role", "content", "id", "status", "phase"))
        if isinstance(made.get("content"), list):
            parts = enumerate(made["content"])
            made["content"] = [
                _sort_part(part, f"{path}.content[{at}]", sorter) for at, part in parts
            ]
        if made.get("role") != "assistant":
            made.pop("phase", None)
        return made
    if kind == "function_call":
        item = _join_call(item, path, sorter)
        return {**item, "arguments": _sort_text_arguments(item, path, sorter)}
    if kind in ("function_call_output", "custom_tool_call_output"):
        made = sorter.keep(item, path, ("type", "call_id", "output", "id", "status"))
        if isinstance(made.get("output"), list):
            made["output"] = [
                _sort_part(part, f"{path}.output[{at}]", sorter)
                for at, part in enumerate(made["output"])
            ]
        return _rewrite(made, path, sorter) if kind != "function_call_output" else made
    if kind in _CALLS:
        return _rewrite(item, path, sorter)
    if kind == "item_reference":
        sorter.leave(path, _REFERENCE)
        return None
    return item  # return an unknown item unchanged to the provider that issued it


def _rewrite(item: dict[str, Any], path: str, sorter: Sorter) -> dict[str, Any]:
    """Convert a custom tool call to a function call, or its output to a function output."""
    if str(item.get("type")).endswith("_output"):
        sorter.leave(
            path,
            Rule("mapped", "it is sent as the output of a function"),
            "custom_output_rewritten",
        )
        return {**item, "type": "function_call_output"}
    sorter.leave(
        path, Rule("mapped", "it is sent as a call of a function"), "custom_call_rewritten"
    )
    name = join_name(item.get("namespace"), item.get("name"))
    name = name or str(item["type"]).removesuffix("_call")
    wanted = item.get("input") if "input" in item else item.get("action") or item.get("operation")
    return {
        "type": "function_call",
        "call_id": item.get("call_id"),
        "name": name,
        "arguments": encode_arguments(wanted),
    }


def _join_call(item: dict[str, Any], path: str, sorter: Sorter) -> dict[str, Any]:
    """Return a call of a namespaced tool as a call of the function that replaces the tool."""
    if not item.get("namespace"):
        return item
    sorter.leave(path, _JOINED, "namespace_joined")
    kept = {name: value for name, value in item.items() if name != "namespace"}
    return {**kept, "name": join_name(item["namespace"], item.get("name"))}


def join_name(namespace: Any, name: Any) -> Any:
    """Return the name of the function that replaces a namespaced tool.

    Some clients send the namespace with a trailing ``_``, others without; both give the same name.
    """
    if not isinstance(namespace, str) or not isinstance(name, str) or not namespace:
        return name
    return f"{namespace.rstrip('_')}__{name}"


def encode_arguments(text: Any) -> str:
    """Return the input of a custom tool as the arguments of a function with one parameter."""
    return msgspec.json.encode({"input": text}).decode()


def _sort_text_arguments(item: dict[str, Any], path: str, sorter: Sorter) -> Any:
    arguments = sort_arguments(item.get("arguments"), f"{path}.arguments", sorter)
    return msgspec.json.encode(arguments).decode() if isinstance(arguments, dict) else arguments


def _sort_part(part: Any, path: str, sorter: Sorter) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str):
        return part
    has_id = kind in ("input_file", "input_image") and part.get("file_id") is not None
    if kind not in _PARTS or has_id:
        sorter.leave(path, Rule("refused", "send text, images or files"), "content_dropped")
        return {
            "type": "output_text" if kind.startswith("output") else "input_text",
            "text": "[content of another kind]",
        }
    names = (
        "type",
        "text",
        "annotations",
        "logprobs",
        "refusal",
        "image_url",
        "detail",
        "filename",
        "file_url",
    )
    made = sorter.keep(part, path, (*names, "file_data", "input_audio"))
    if kind != "output_text":
        made.pop("annotations", None)
        made.pop("logprobs", None)
    detail = made.get("detail")
    if detail is not None and (kind != "input_image" or detail not in DETAILS):
        del made["detail"]
        sorter.leave(f"{path}.detail")
    return made


# --- preparing tools and settings --------------------------------------------------------------


def _sort_tools(tools: list[Any], sorter: Sorter) -> list[Any]:
    made: list[Any] = []
    others: list[tuple[str, Any]] = []
    for at, tool in enumerate(tools):
        kind = tool.get("type") if isinstance(tool, dict) else None
        path = f"tools[{at}]"
        if kind in ("function", "custom"):
            made.append(_sort_tool(tool, path, sorter))
        elif kind == "namespace" and isinstance(tool.get("tools"), list):
            made += _sort_namespace(tool, path, sorter)
        elif isinstance(kind, str):
            others.append((path, tool))
        else:
            made.append(tool)
    for path, tool in others:
        hosted = read_hosted("responses", tool["type"], tool)
        sorter.leave(path, _OFFERED if made else _HOSTED, "hosted_tool_dropped", hosted)
    return made


def _sort_tool(tool: dict[str, Any], path: str, sorter: Sorter) -> dict[str, Any]:
    if tool.get("type") == "custom":
        return _sort_custom(tool, path, sorter)
    return sorter.keep(
        tool, path, ("type", "name", "description", "parameters", "strict"), _FUNCTION
    )


def _sort_namespace(tool: dict[str, Any], path: str, sorter: Sorter) -> Iterator[Any]:
    """Yield the tools of a namespace as functions whose names contain the namespace.

    The description of the first function begins with the description of the namespace.
    """
    sorter.leave(path, _JOINED, "namespace_joined")
    namespace, about = tool.get("name"), tool.get("description")
    for at, each in enumerate(tool["tools"]):
        inner = f"{path}.tools[{at}]"
        if not isinstance(each, dict) or each.get("type") not in ("function", "custom"):
            sorter.leave(inner, _OFFERED, "hosted_tool_dropped")
            continue
        joined = join_name(namespace, each.get("name"))
        sorter.grouped[str(joined)] = (str(namespace), str(each.get("name")))
        texts = [text for text in (about, each.get("description")) if isinstance(text, str)]
        about = None
        named = {**each, "name": joined, "description": "\n\n".join(texts)}
        yield _sort_tool(named, inner, sorter)


def _sort_custom(tool: dict[str, Any], path: str, sorter: Sorter) -> dict[str, Any]:
    """Convert a custom tool, whose input is free text, to a function with one parameter."""
    sorter.leave(
        path, Rule("mapped", "it is offered as a function with one text"), "custom_tool_rewritten"
    )
    name = tool.get("name")
    sorter.custom.add(str(name))
    form = tool.get("format")
    form = form if isinstance(form, dict) else {}
    about = str(tool.get("description") or "")
    if form.get("type") == "grammar":
        about += (
            f"\n\nThe input must match this {form.get('syntax')} "
            f"grammar:\n{form.get('definition')}"
        )
    text = {"type": "string", "description": "The whole input of the tool."}
    schema = {
        "type": "object",
        "properties": {"input": text},
        "required": ["input"],
        "additionalProperties": False,
    }
    return {"type": "function", "name": name, "description": about.strip(), "parameters": schema}


def _sort_choice(made: dict[str, Any], sorter: Sorter) -> None:
    choice = made.get("tool_choice")
    if not isinstance(choice, dict):
        return
    kind = choice.get("type")
    if kind == "allowed_tools":
        sorter.own |= {"tool_choice": choice}
        keep_allowed(made, choice, sorter)
    elif kind == "custom":
        sorter.own |= {"tool_choice": choice}
        made["tool_choice"] = {"type": "function", "name": choice.get("name")}
    elif kind not in (None, "function", "tool"):
        sorter.leave("tool_choice", _HOSTED)
        del made["tool_choice"]


def _sort_text(made: dict[str, Any], sorter: Sorter) -> None:
    text = made.get("text")
    if not isinstance(text, dict):
        return
    if text.get("verbosity") not in (None, "medium"):
        sorter.wish("verbosity", text["verbosity"])
    form = text.get("format")
    kept = sorter.keep(
        {name: value for name, value in text.items() if name != "verbosity"}, "text", ("format",)
    )
    if isinstance(form, dict) and form.get("type") == "json_object":
        del kept["format"]
        sorter.wish("json_mode", True)
    elif isinstance(form, dict) and form.get("type") == "json_schema":
        kept["format"] = sorter.keep(form, "text.format", ("type", "name", "schema", "strict"))
    made["text"] = kept


def _sort_reasoning(made: dict[str, Any], sorter: Sorter) -> None:
    reasoning = made.get("reasoning")
    if not isinstance(reasoning, dict):
        return
    summary = Rule(
        "hint", "the thoughts that the model's server sends are passed on", default=("auto",)
    )
    kept = sorter.keep(
        reasoning, "reasoning", ("effort",), {"summary": summary, "generate_summary": summary}
    )
    effort = kept.get("effort")
    if isinstance(effort, str) and effort not in EFFORTS:
        sorter.own["reasoning"] = reasoning
        sorter.wish("reasoning", "xhigh" if effort == "max" else None)
        kept = {}
    made["reasoning"] = kept
