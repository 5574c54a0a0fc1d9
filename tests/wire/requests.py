"""Recorded requests, read and written again: is the body the same as the one that the vendor's own client sent?

``python -m tests.wire.requests`` prints the share of each wire, and the reasons for the rest. Bodies are compared after
the normalisers below, each with its reason: what is left is a difference that the server could see.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from dragoman.capabilities import Capabilities
from dragoman.errors import ProviderError
from dragoman.validate import check_request
from dragoman.wire import CODECS, SERVER_CODECS

from .cases import RECORDED, WIRES

Body = dict[str, Any]


class Outcome(NamedTuple):
    """What became of a request: ``same``, ``refused`` (our values cannot express it), or ``differs``; and where."""

    verdict: str
    places: tuple[str, ...] = ()


def compare(wire: str, asked: Body, path: str = "") -> Outcome:
    """Read a recorded request, write it again, and compare the two bodies."""
    try:
        request = SERVER_CODECS[wire].decode(json.dumps(asked).encode(), path).request
        check_request(request, history=False)
        codec = CODECS[wire].connect(request.model or "m", "http://127.0.0.1:9", QUIRKS.get(wire), Capabilities())
        sent = json.loads(codec.encode(request).http.body)
    except ProviderError as error:
        return Outcome("refused", (re.sub(r"\[\d+\]|\d+|'[^']*'", "", error.message)[:80],))
    places = tuple(sorted(set(_differences(normalise(wire, asked), normalise(wire, sent)))))
    return Outcome("differs", places) if places else Outcome("same")


# What our defaults add, and a client may leave out.
QUIRKS: dict[str, Any] = {
    "openai": {"stream_usage": False},
    "responses": {"encrypted_reasoning": False, "strict_tools": False},
}


def _differences(theirs: Any, ours: Any, path: str = "") -> Iterator[str]:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for name in {**theirs, **ours}:
            place = f"{path}.{name}" if path else name
            if name not in theirs or name not in ours:
                yield f"{place} ({'added' if name in ours else 'missing'})"
            else:
                yield from _differences(theirs[name], ours[name], place)
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        for each, other in zip(theirs, ours, strict=True):
            yield from _differences(each, other, f"{path}[]")
    elif theirs != ours or isinstance(theirs, bool) != isinstance(ours, bool):
        yield path


# --- normalisers ------------------------------------------------------------------------------------


def drop_nulls(value: Any) -> Any:
    """SDKs dump every field they have: a field that is null is one that is not sent."""
    if isinstance(value, dict):
        return {name: drop_nulls(each) for name, each in value.items() if each is not None}
    return [drop_nulls(each) for each in value] if isinstance(value, list) else value


def drop_defaults(body: Body) -> Body:
    """A field with the value that its absence has."""
    for name, value in (("stream", False), ("n", 1), ("tools", []), ("stop", []), ("generationConfig", {})):
        if body.get(name) == value and type(body.get(name)) is type(value):
            del body[name]
    for name in ("stream_options", "response_format"):
        if body.get(name) in ({"include_usage": True}, {"include_usage": False}, {"type": "text"}):
            del body[name]
    return body


def use_old_limit(body: Body) -> Body:
    """``max_completion_tokens`` is a vendor's quirk; both names mean one setting."""
    if "max_completion_tokens" in body:
        body["max_tokens"] = body.pop("max_completion_tokens")
    return body


def one_text(content: Any) -> Any:
    """One part of text is the same as the string; several texts of a turn are joined."""
    if isinstance(content, list) and content and all(set(part) == {"type", "text"} for part in content):
        return "".join([part["text"] for part in content])
    return content


def join_leading(body: Body) -> Body:
    """Leading system messages are joined by a blank line."""
    messages = body.get("messages", [])
    while len(messages) > 1 and {messages[0]["role"], messages[1]["role"]} <= {"system", "developer"}:
        first, second = messages.pop(0), messages[0]
        second["content"] = f"{one_text(first['content'])}\n\n{one_text(second['content'])}"
    return body


def plain_chat(body: Body) -> Body:
    """Messages: the content of a turn, its calls' JSON, and the roles of instructions."""
    for message in body.get("messages", ()):
        message["content"] = one_text(message.get("content"))
        if message["role"] == "developer":
            message["role"] = "system"
        if message["role"] == "assistant" and not message["content"]:
            del message["content"]
        if not message.get("tool_calls"):
            message.pop("tool_calls", None)
        for call in message.get("tool_calls", ()):
            call.pop("index", None)  # left over from the stream that the client read
            call["function"]["arguments"] = _read(call["function"]["arguments"] or "{}")
        for part in message["content"] if isinstance(message.get("content"), list) else ():
            if isinstance(part.get("image_url"), str):
                part["image_url"] = {"url": part["image_url"]}
    for tool in body.get("tools", ()):
        tool.setdefault("type", "function")
        function = tool.get("function", {})
        function.setdefault("description", "")
        function.setdefault("parameters", {"type": "object", "properties": {}})
        if function.get("strict") is False:
            del function["strict"]
    return _plain_schema(body, body.get("response_format", {}).get("json_schema"))


def plain_messages(body: Body) -> Body:
    """Anthropic: one text is a string, and a false flag is none."""
    system = body.get("system")
    body["system"] = one_text(system)
    for message in body.get("messages", ()):
        message["content"] = one_text(message["content"])
        for part in message["content"] if isinstance(message["content"], list) else ():
            if part.get("type") == "tool_result":
                part["content"] = one_text(part.get("content", ""))
                if part.get("is_error") is False:
                    del part["is_error"]
    for tool in body.get("tools", ()):
        if not tool.get("description"):
            tool.pop("description", None)
        if tool.get("strict") is False:
            del tool["strict"]
    if body.get("thinking") == {"type": "disabled"}:
        del body["thinking"]
    return drop_nulls(body)  # type: ignore[no-any-return]


def plain_contents(body: Body) -> Body:
    """Gemini: JSON Schema under its newer name, types in lower case, and a result of one text."""
    body.get("systemInstruction", {}).pop("role", None)
    for tool in body.get("tools", ()):
        for function in tool.get("functionDeclarations", ()):
            schema = function.pop("parameters", None) or function.pop("parametersJsonSchema", None) or {}
            function.setdefault("description", "")
            function["parameters"] = _lower_types(schema) or {"type": "object", "properties": {}}
    config = body.get("generationConfig", {})
    if "responseSchema" in config:
        config["responseJsonSchema"] = config.pop("responseSchema")
    if "responseJsonSchema" in config:
        config["responseJsonSchema"] = _lower_types(config["responseJsonSchema"])
    body["contents"] = _merge_turns(body.get("contents", []))
    for content in body["contents"]:
        for part in content.get("parts", ()):
            if "functionResponse" in part:
                part["functionResponse"]["response"] = _result(part["functionResponse"].get("response"))
    return body


def _merge_turns(contents: list[Any]) -> list[Any]:
    """Two contents of one role are one turn."""
    merged: list[Any] = []
    for content in contents:
        content.setdefault("role", "user")
        if merged and merged[-1]["role"] == content["role"]:
            merged[-1]["parts"] = [*merged[-1].get("parts", ()), *content.get("parts", ())]
        else:
            merged.append(content)
    return merged


def _result(response: Any) -> Any:
    """The one value of a result, whatever key it is under; any other object is the JSON that it is."""
    if isinstance(response, dict) and len(response) == 1:
        [(name, only)] = response.items()
        if name in ("result", "output", "error"):
            return _read(only) if isinstance(only, str) else only
    return response


def _lower_types(schema: Any) -> Any:
    if isinstance(schema, dict):
        lower = {name: _lower_types(each) for name, each in schema.items()}
        return {**lower, "type": lower["type"].lower()} if isinstance(lower.get("type"), str) else lower
    return [_lower_types(each) for each in schema] if isinstance(schema, list) else schema


def plain_input(body: Body) -> Body:
    """Responses: what is always said here (``store``), text as input, and instructions as a message."""
    for name in ("store", "include", "background"):
        body.pop(name, None)  # nothing is stored, and encrypted reasoning is asked for: a decision of ours
    if isinstance(body.get("input"), str):
        body["input"] = [{"role": "user", "content": body["input"]}]
    items = []
    instructions = [body.pop("instructions")] if body.get("instructions") else []
    for item in body.get("input", ()):
        item.pop("status", None)
        if item.get("type", "message") == "message":
            content = _join_texts(item.get("content"))
            if item.get("role") in ("system", "developer") and not items and isinstance(content, str):
                instructions.append(content)
                continue
            item = {"role": item.get("role"), "content": content}
        elif item.get("type") == "function_call":
            item = {**item, "arguments": _read(item.get("arguments") or "{}")}
            item.pop("id", None)
        items.append(item)
    body["input"] = [item for item in items if item != {"role": "assistant", "content": ""}]
    if not body.get("instructions"):
        body.pop("instructions", None)
    if instructions:
        body["instructions"] = "\n\n".join(instructions)
    for tool in body.get("tools", ()):
        if tool.get("type") == "function":
            tool["strict"] = bool(tool.get("strict"))
            tool.setdefault("description", "")
            tool.setdefault("parameters", {"type": "object", "properties": {}})
    if body.get("text") == {"format": {"type": "text"}}:
        del body["text"]
    return _plain_schema(body, body.get("text", {}).get("format"))


def _join_texts(content: Any) -> Any:
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    if parts and all(part.get("type") in ("input_text", "output_text", "text") for part in parts):
        return "".join([part["text"] for part in parts])
    return content


def _plain_schema(body: Body, form: Any) -> Body:
    """A name that the client gave a schema is sent as its title too; ``strict`` is decided by the schema."""
    if isinstance(form, dict) and isinstance(form.get("schema"), dict):
        form["schema"].pop("title", None)
        form.pop("strict", None)
    return body


def plain_ollama(body: Body) -> Body:
    """Ollama streams unless it is told not to; an empty list of options is none."""
    body.setdefault("stream", True)
    if not body.get("options"):
        body.pop("options", None)
    for name in ("format", "tools"):
        if body.get(name) in ("", []):
            del body[name]
    for message in body.get("messages", ()):
        message.setdefault("content", "")
        for call in message.get("tool_calls", ()):
            call.pop("type", None)
    return body


def _read(text: Any) -> Any:
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return text


STEPS: dict[str, list[Callable[[Body], Body]]] = {
    "openai": [drop_defaults, use_old_limit, join_leading, plain_chat],
    "anthropic": [drop_defaults, plain_messages],
    "gemini": [drop_defaults, plain_contents],
    "responses": [drop_defaults, plain_input],
    "ollama": [plain_ollama],
}


def normalise(wire: str, body: Body) -> Body:
    """Return a body without the differences that no server can see."""
    plain: Body = json.loads(json.dumps(drop_nulls(body)))
    for step in STEPS[wire]:
        plain = step(plain)
    return plain


# --- what is left, and why ---------------------------------------------------------------------------

_REASONING = "reasoning is translated for the model's family, and the family is known by the vendor's catalogue only"
_CACHE = "marks of a prompt cache are placed by Cache; those that a client sets itself are hints"
_HINT = "a hint that our values have no place for: the server side reports it as a LossWarning"
_STRICT = "strict is sent only for schemas within its rules, and these are not"
_STATE = "state goes back to the endpoint that made it, which a plain body does not name"
_OWN = "tools and blocks of the server itself: ours come first, and calls without their results are left out"
REASONS: dict[str, str] = {
    r"(reasoning|reasoning_effort|thinking|thinking_budget|think|chat_template_kwargs|output_config)\b": _REASONING,
    r"generationConfig\.thinkingConfig": _REASONING,
    r"(enable_thinking|extra_body|include_reasoning|verbosity)\b": _REASONING,
    r".*cache_control": _CACHE,
    r"(messages\[\]\.content|messages)$|system": _CACHE + "; or: " + _OWN,
    r"tool_choice\.disable_parallel_tool_use": _HINT,
    r"messages\[\]\.content\[\]\.(caller|citations)": _HINT,
    r"messages\[\]\.(annotations|audio|refusal|reasoning|reasoning_content|reasoning_details)": _STATE,
    r"messages\[\]\.content\[\]\.(thinking|signature|type|text|data|name|input|id|content|tool_use_id)": _STATE,
    r"input": _STATE + "; or an item of a role or kind in a place where none is sent",
    r"contents": "a turn without its function's response is left out, and so is a call that nothing answers",
    r"contents\[\]\.parts\[\]\.functionResponse": "a result that is an object is sent as JSON text",
    r"contents\[\]": _STATE,
    r"tools\[\]\.(function\.)?strict": _STRICT,
    r"tools\[\]\.function\.type": "a field that does not belong there",
    r"tools\[\]|tools": _OWN,
    r"toolConfig\.functionCallingConfig": "several allowed functions are sent as that subset of the tools",
    r"tool_choice": "a form of another wire, which compatible servers take, is sent in this wire's own form",
    r"(response_format\.json_schema|text\.format)\.(description|name)": _HINT,
    r"response_format|format": "JSON mode is the schema of any object",
    r"messages\[\]\.(tool_calls|tool_call_id|content|name|role|prefix)": "a call without a result is left out",
    r"(max_tokens|stop|store|metadata|user|service_tier|keep_alive|instructions|text|generationConfig)": _HINT,
    r"(stream_options|parallel_tool_calls|extra_headers|context_management|container|mcp_servers|betas)": _HINT,
}


def reason_of(place: str) -> str | None:
    """Return why a place may differ, or ``None`` if nothing explains it."""
    return next((why for pattern, why in REASONS.items() if re.match(pattern, place)), None)


# --- recordings -------------------------------------------------------------------------------------


def recorded() -> Iterator[tuple[str, str, Body, str]]:
    """Yield the id, the wire, the body and the path of every recorded request that was accepted and is complete."""
    with gzip.open(RECORDED, "rb") as lines:
        for line in lines:
            data = json.loads(line)
            wire, body = WIRES.get(data["provider"]), data["request_json"]
            if wire is None or data["op"] != "create" or data["request_elided"] or not isinstance(body, dict):
                continue
            path = urlsplit(data["url"] or "").path
            if wire != "gemini":
                body = {"model": data["model"] or "m", **body}  # some clients name it in the address
            elif ":" not in path.rpartition("/")[2]:
                path = f"/v1beta/models/{data['model'] or 'm'}:generateContent"
            if data["status"] == 200:
                yield data["id"], wire, body, path


def report() -> dict[str, tuple[int, int, Counter[str], Counter[str]]]:
    """Return for each wire how many requests our values express, how many of them are the same, and the reasons."""
    found: dict[str, tuple[list[int], Counter[str], Counter[str]]] = {}
    for _, wire, body, path in recorded():
        counts, refused, differing = found.setdefault(wire, ([0, 0], Counter(), Counter()))
        outcome = compare(wire, body, path)
        if outcome.verdict == "refused":
            refused.update(outcome.places)
            continue
        counts[0] += 1
        counts[1] += outcome.verdict == "same"
        differing.update(outcome.places)
    return {wire: (*counts, refused, differing) for wire, (counts, refused, differing) in found.items()}


if __name__ == "__main__":
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    for name, (expressed, same, refused, differing) in report().items():
        print(f"{name}: {same} of {expressed} the same ({same / expressed:.1%}); {refused.total()} not expressed")
        for place, count in differing.most_common(most):
            print(f"  {count:5} differ at {place}: {reason_of(place)}")
        for reason, count in refused.most_common(most):
            print(f"  {count:5} refused: {reason}")
