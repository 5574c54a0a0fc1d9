"""Decode recorded requests, encode them again, and compare the result with what the client sent.

``python -m bench.requests`` prints for each wire the share of equal requests and the reasons for all
others; ``--write`` writes the table into ``bench/README.md``, and
``tests/wire/test_request_bytes.py`` checks it. Bodies are compared after normalisation. Each
normaliser below documents its reason, so a remaining difference is one that the server could see.
"""

import gzip
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from msgspec.structs import replace
from tests.wire.cases import RECORDED, ROOT, WIRES

from dragoman.capabilities import Capabilities
from dragoman.errors import ProviderError
from dragoman.messages import Request
from dragoman.validate import check_request
from dragoman.wire import CODECS, SERVER_CODECS
from dragoman.wire.beliefs import vendor_of
from dragoman.wire.policy import Target, decode_portable, translate
from dragoman.wire.rules import Betas

Body = dict[str, Any]
_NOWHERE = "http://127.0.0.1:9"  # the origin of a recording without a URL


class Outcome(NamedTuple):
    """The result of decoding a request and encoding it again.

    The verdict is ``same``; ``differs``, with the paths of the differences; ``reported``, if our
    classes cannot represent a part of the request and a warning names this part; or ``refused``,
    with the reason, if our classes cannot represent the request.
    """

    verdict: str
    places: tuple[str, ...] = ()


def compare(wire: str, asked: Body, path: str = "", origin: str = _NOWHERE) -> Outcome:
    """Decode a recorded request as the gateway does, encode it for the same wire, and compare the
    bodies.
    """
    try:
        request = _read_request(wire, asked, path)
        if isinstance(request, Outcome):
            return request
        quirks = {**QUIRKS.get(wire, {}), **_endpoint_of(wire, asked)}
        codec = CODECS[wire].connect(
            request.model or "m", origin, quirks, Capabilities(), vendor=vendor_of(origin)
        )
        encoded = codec.encode(request)
    except ProviderError as error:
        return Outcome("refused", (re.sub(r"\[\d+\]|\d+|'[^']*'", "", error.message)[:80],))
    if encoded.warnings:
        return Outcome("reported", tuple(sorted({warning.code for warning in encoded.warnings})))
    sent = json.loads(encoded.http.body)
    places = tuple(sorted(set(_differences(normalise(wire, asked), normalise(wire, sent)))))
    return Outcome("differs", places) if places else Outcome("same")


def _read_request(wire: str, asked: Body, path: str) -> Request | Outcome:
    """Decode a body; return the request, or an outcome that lists what our classes cannot
    represent.
    """
    codec = SERVER_CODECS[wire]
    # The recordings have no headers. A pattern of betas also stands for a beta that it matches.
    found = replace(decode_portable(codec, asked, path), betas=Betas(codec.safe_betas))
    target = Target(found.request.model, frozenset({wire}))
    made = translate(found, codec, target)
    lost = {warning.code for warning in (*found.warnings, *made.warnings)}
    if not lost:
        check_request(made.request, history=False)
    return Outcome("reported", tuple(sorted(lost))) if lost else made.request


def _endpoint_of(wire: str, asked: Body) -> dict[str, Any]:
    """Return the quirks of the endpoint that received a recorded request. Thinking and cache marks
    are allowed if the request contains them.
    """
    if wire != "openai":
        return {}
    quirks: dict[str, Any] = {"cache_control": True} if any(_marked(asked)) else {}
    for name in ("reasoning_content", "reasoning"):
        if any(message.get(name) for message in asked.get("messages", ())):
            quirks.setdefault("send_reasoning", name)
    return quirks


# Quirks that turn off fields which our codecs add by default and clients may omit.
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


# --- functions that normalise requests before a comparison -------------------------------------


def drop_nulls(value: Any) -> Any:
    """Drop fields that are null. SDKs write every field, and null means that the field is not
    set.
    """
    if isinstance(value, dict):
        return {name: drop_nulls(each) for name, each in value.items() if each is not None}
    return [drop_nulls(each) for each in value] if isinstance(value, list) else value


# Fields with their default value: a request with such a field means the same without it.
_DEFAULTS: tuple[tuple[str, Any], ...] = (
    ("stream", False), ("n", 1), ("tools", []), ("stop", []), ("service_tier", "auto"),
    ("service_tier", "default"),
    ("parallel_tool_calls", True), ("logprobs", False), ("top_logprobs", 0), ("background", False),
    ("stream_options", {"include_usage": True}), ("stream_options", {"include_usage": False}),
    ("response_format", {"type": "text"}),
)  # fmt: skip


def drop_defaults(body: Body) -> Body:
    """Drop fields whose value is the default."""
    for name, value in _DEFAULTS:
        if body.get(name) == value and type(body.get(name)) is type(value):
            del body[name]
    config = body.get("generationConfig")
    if isinstance(config, dict):
        for name, value in (
            ("candidateCount", 1),
            ("responseModalities", ["TEXT"]),
            ("responseLogprobs", False),
        ):
            if config.get(name) == value:
                del config[name]
        if not config:
            del body["generationConfig"]
    return body


def use_old_limit(body: Body) -> Body:
    """Rename ``max_completion_tokens`` to ``max_tokens``; both mean the same setting."""
    if "max_completion_tokens" in body:
        body["max_tokens"] = body.pop("max_completion_tokens")
    return body


def one_text(content: Any) -> Any:
    """Return a list of text parts as one joined string; return other content unchanged."""
    if (
        isinstance(content, list)
        and content
        and all(set(part) == {"type", "text"} for part in content)
    ):
        return "".join([part["text"] for part in content])
    return content


def join_leading(body: Body) -> Body:
    """Join the system messages at the start of a conversation with blank lines."""
    messages = body.get("messages", [])
    while len(messages) > 1 and {messages[0]["role"], messages[1]["role"]} <= {
        "system",
        "developer",
    }:
        first = messages.pop(0)
        second = messages[0]
        second["content"] = f"{one_text(first['content'])}\n\n{one_text(second['content'])}"
    return body


def plain_chat(body: Body) -> Body:
    """Normalise chat messages: their content, the arguments of tool calls, and the role of system
    messages.
    """
    for message in body.get("messages", ()):
        message["content"] = one_text(message.get("content"))
        if message["role"] == "developer":
            message["role"] = "system"
        if message["role"] == "assistant" and not message["content"]:
            del message["content"]
        if not message.get("tool_calls"):
            message.pop("tool_calls", None)
        if not message.get("annotations"):  # the client SDK copied an empty list from a reply
            message.pop("annotations", None)
        if not message.get("citations"):
            message.pop("citations", None)
        for call in message.get("tool_calls", ()):
            call.pop("index", None)  # the client copied this index from a streamed reply
            call["function"]["arguments"] = _read(call["function"]["arguments"] or "{}")
        for part in message["content"] if isinstance(message.get("content"), list) else ():
            if isinstance(part.get("image_url"), str):
                part["image_url"] = {"url": part["image_url"]}
    for tool in body.get("tools", ()):
        tool.setdefault("type", "function")
        function = tool.get("function", {})
        function.pop("type", None)  # the type is a field of the tool, not of its function
        function.setdefault("description", "")
        function.setdefault("parameters", {"type": "object", "properties": {}})
        if function.get("strict") is False:
            del function["strict"]
    thinking = body.get("reasoning")
    # OpenRouter accepts this object instead of reasoning_effort.
    if isinstance(thinking, dict) and set(thinking) == {"effort"}:
        body["reasoning_effort"] = body.pop("reasoning")["effort"]
    for message in body.get("messages", ()):
        # Some servers send and accept both names of the reasoning field.
        if message.get("reasoning") == message.get("reasoning_content"):
            message.pop("reasoning", None)
    choice = body.get("tool_choice")
    # Compatible servers also accept the tool choice format of the Anthropic wire.
    if isinstance(choice, dict) and choice.get("type") == "tool":
        body["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
    return _plain_schema(body, body.get("response_format", {}).get("json_schema"))


def plain_messages(body: Body) -> Body:
    """Normalise Anthropic messages: a single text becomes a string, a false flag is omitted."""
    system = body.get("system")
    body["system"] = one_text(system)
    for message in body.get("messages", ()):
        message["content"] = one_text(message["content"])
        for part in message["content"] if isinstance(message["content"], list) else ():
            if part.get("type") == "tool_result":
                part["content"] = one_text(part.get("content", ""))
                if part.get("is_error") is False:
                    del part["is_error"]
            if part.get("caller") == {"type": "direct"}:  # "direct" is the default for every call
                del part["caller"]
    for tool in body.get("tools", ()):
        if not tool.get("description"):
            tool.pop("description", None)
        if tool.get("strict") is False:
            del tool["strict"]
    if body.get("thinking") in ({"type": "disabled"}, {"type": "adaptive"}):
        del body["thinking"]  # the effort implies adaptive thinking
    if body.get("tool_choice", {}).get("disable_parallel_tool_use") is False:
        del body["tool_choice"]["disable_parallel_tool_use"]
    for marked in _marked(body):
        if marked["cache_control"].get("ttl") == "5m":  # five minutes are the default lifetime
            del marked["cache_control"]["ttl"]
    return drop_nulls(body)  # type: ignore[no-any-return]


# Fields whose content the caller writes: the names inside are not field names of the wire.
_FREE = frozenset(
    {
        "args",
        "response",
        "parameters",
        "parametersJsonSchema",
        "responseSchema",
        "responseJsonSchema",
    }
)


def one_spelling(value: Any) -> Any:
    """Convert Gemini's snake-case names, such as ``system_instruction``, to camel case."""
    if isinstance(value, dict):
        named = {
            re.sub("_([a-z])", lambda found: found[1].upper(), name): each
            for name, each in value.items()
        }
        return {
            name: each if name in _FREE else one_spelling(each) for name, each in named.items()
        }
    return [one_spelling(each) for each in value] if isinstance(value, list) else value


def as_lists(body: Body) -> Body:
    """Normalise the short forms that Gemini accepts: wrap a single object in a list, and a string
    in an object with one text part.
    """
    for name in ("tools", "contents"):
        if isinstance(body.get(name), dict):
            body[name] = [body[name]]
    if isinstance(body.get("systemInstruction"), str):
        body["systemInstruction"] = {"parts": [{"text": body["systemInstruction"]}]}
    for content in [*body.get("contents", ()), body.get("systemInstruction", {})]:
        if isinstance(content.get("parts"), dict):
            content["parts"] = [content["parts"]]
    return body


def _marked(value: Any) -> Iterator[Body]:
    """Yield every object with a prompt-cache mark."""
    if isinstance(value, dict):
        if isinstance(value.get("cache_control"), dict):
            yield value
        value = list(value.values())
    for each in value if isinstance(value, list) else ():
        yield from _marked(each)


def plain_contents(body: Body) -> Body:
    """Normalise Gemini contents: schema field names, lower-case types, tool results with one
    text.
    """
    body.pop("model", None)  # the URL names the model
    body.get("systemInstruction", {}).pop("role", None)
    if not "".join(
        [part.get("text", "") for part in body.get("systemInstruction", {}).get("parts", ())]
    ):
        body.pop("systemInstruction", None)
    for content in [*body.get("contents", ()), body.get("systemInstruction", {})]:
        for part in content.get("parts", ()):
            if part.get("thought") is False:
                del part["thought"]
    calling = body.get("toolConfig", {}).get("functionCallingConfig", {})
    if "mode" in calling:
        calling["mode"] = calling["mode"].upper()  # Gemini reads its enums in upper and lower case
    for tool in body.get("tools", ()):
        for function in tool.get("functionDeclarations", ()):
            schema = (
                function.pop("parameters", None)
                or function.pop("parametersJsonSchema", None)
                or {}
            )
            function.setdefault("description", "")
            function["parameters"] = _lower_types(schema) or {"type": "object", "properties": {}}
    config = body.get("generationConfig", {})
    thinking = config.get("thinkingConfig", {})
    if "thinkingLevel" in thinking:
        thinking["thinkingLevel"] = thinking["thinkingLevel"].lower()
    if "responseSchema" in config:
        config["responseJsonSchema"] = config.pop("responseSchema")
    if "responseJsonSchema" in config:
        config["responseJsonSchema"] = _lower_types(config["responseJsonSchema"])
    body["contents"] = _merge_turns(body.get("contents", []))
    for content in body["contents"]:
        for part in content.get("parts", ()):
            if "functionResponse" in part:
                part["functionResponse"]["response"] = _result(
                    part["functionResponse"].get("response")
                )
    return body


def _merge_turns(contents: list[Any]) -> list[Any]:
    """Merge consecutive contents that have the same role."""
    merged: list[Any] = []
    for content in contents:
        content.setdefault("role", "user")
        if merged and merged[-1]["role"] == content["role"]:
            merged[-1]["parts"] = [*merged[-1].get("parts", ()), *content.get("parts", ())]
        else:
            merged.append(content)
    return merged


def _result(response: Any) -> Any:
    """Return the value of a tool result that is an object with only a conventional key such as
    ``result``; return any other tool result unchanged.
    """
    if isinstance(response, dict) and len(response) == 1:
        [(name, only)] = response.items()
        if name in ("result", "output", "error"):
            return _read(only) if isinstance(only, str) else only
    return response


def _lower_types(schema: Any) -> Any:
    if isinstance(schema, dict):
        lower = {name: _lower_types(each) for name, each in schema.items()}
        return (
            {**lower, "type": lower["type"].lower()}
            if isinstance(lower.get("type"), str)
            else lower
        )
    return [_lower_types(each) for each in schema] if isinstance(schema, list) else schema


def plain_input(body: Body) -> Body:
    """Normalise Responses input: drop constant fields such as ``store``, and unify texts and
    instructions.
    """
    for name in ("store", "include", "background"):
        # By design our requests forbid storing and ask for encrypted reasoning.
        body.pop(name, None)
    if isinstance(body.get("input"), str):
        body["input"] = [{"role": "user", "content": body["input"]}]
    items = []
    instructions = [body.pop("instructions")] if body.get("instructions") else []
    for item in body.get("input", ()):
        item.pop("status", None)
        if item.get("type", "message") == "message":
            content = _join_texts(item.get("content"))
            if (
                item.get("role") in ("system", "developer")
                and not items
                and isinstance(content, str)
            ):
                instructions.append(content)
                continue
            item = {"role": item.get("role"), "content": content}
        elif item.get("type") == "function_call":
            item = {**item, "arguments": _read(item.get("arguments") or "{}")}
            item.pop("id", None)
        items.append(item)
    empty = ({"role": "assistant", "content": ""}, {"role": "assistant", "content": []})
    body["input"] = [item for item in items if item not in empty]
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
    parts = (
        [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    )
    if parts and all(part.get("type") in ("input_text", "output_text", "text") for part in parts):
        return "".join([part["text"] for part in parts])
    return content


def _plain_schema(body: Body, form: Any) -> Body:
    """Drop the title of a schema, which repeats its name, and ``strict``, which follows from the
    schema.
    """
    if isinstance(form, dict) and isinstance(form.get("schema"), dict):
        form["schema"].pop("title", None)
        form.pop("strict", None)
    return body


def plain_ollama(body: Body) -> Body:
    """Normalise Ollama bodies: streaming is the default, and empty options are omitted."""
    body.setdefault("stream", True)
    if not body.get("options"):
        body.pop("options", None)
    for name in ("format", "tools"):
        if body.get(name) in ("", []):
            del body[name]
    if body.get("format") == "json":  # the format "json" means any JSON object
        body["format"] = {"type": "object"}
    if body.get("think") is True:  # the value true means the model's default effort
        body["think"] = "medium"
    for message in body.get("messages", ()):
        message.setdefault("content", "")
        if not message.get("tool_calls", True):
            del message["tool_calls"]
        for call in message.get("tool_calls", ()):
            call.pop("type", None)
    return body


def plain_cohere(body: Body) -> Body:
    """Normalise Cohere bodies: both forms of JSON output become a schema under one field name."""
    form = body.get("response_format")
    if isinstance(form, dict) and form.get("type") in ("json_object", "json_schema"):
        body["response_format"] = {
            "type": "json_object",
            "json_schema": form.get("json_schema", {"type": "object"}),
        }
    return body


def plain_converse(body: Body) -> Body:
    """Normalise Converse bodies: drop empty fields, defaults and the model; merge turns."""
    body.pop("modelId", None)
    for name in ("inferenceConfig", "system"):
        if not body.get(name):
            body.pop(name, None)
    merged: list[Any] = []
    for turn in body.get("messages", ()):
        for block in turn["content"]:
            if block.get("toolResult", {}).get("status") == "success":
                del block["toolResult"]["status"]
            if block.get("toolUse", {}).get("type") == "tool_use":
                del block["toolUse"]["type"]
        if merged and merged[-1]["role"] == turn["role"]:
            merged[-1]["content"] += turn["content"]
        else:
            merged.append(turn)
    body["messages"] = merged
    return body


def _read(text: Any) -> Any:
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return text


STEPS: dict[str, list[Callable[[Body], Body]]] = {
    "openai": [drop_defaults, use_old_limit, join_leading, plain_chat],
    "anthropic": [drop_defaults, plain_messages],
    "gemini": [one_spelling, as_lists, drop_defaults, plain_contents],
    "responses": [drop_defaults, plain_input],
    "ollama": [plain_ollama],
    "cohere": [drop_defaults, plain_cohere, plain_chat],
    "bedrock": [plain_converse],
}


DEFAULT_CHOICES = ({"type": "auto"}, {"type": "auto", "disable_parallel_tool_use": False})
EMPTY = ("documents", "additionalModelRequestFields")  # fields that mean nothing when empty


def normalise(wire: str, body: Body) -> Body:
    """Return a normalised body; two bodies that every server treats alike become equal."""
    plain: Body = json.loads(json.dumps(drop_nulls(body)))
    without = ["tool_choice"] * (plain.get("tool_choice") in DEFAULT_CHOICES)
    without += ["parallel_tool_calls"] * (not plain.get("tools"))
    without += [name for name in EMPTY if plain.get(name) in ([], {})]
    plain = {name: value for name, value in plain.items() if name not in without}
    for step in STEPS[wire]:
        plain = step(plain)
    return plain


# --- reasons for remaining differences ---------------------------------------------------------

REASONS: dict[str, str] = {
    r"(reasoning_effort|thinking|enable_thinking|chat_template_(kwargs|args))\b": (
        "thinking is switched as the host and the family document it"
    ),
    r"reasoning \(missing\)": "the host takes the amount of reasoning in another field",
    r"(generationConfig\.)?temperature \(missing\)|inferenceConfig \(missing\)": (
        "models that refuse the setting, or refuse it while they reason, take its default alone, "
        "which is not sent"
    ),
    r"tool_choice \(missing\)": "a choice without tools is left out, since some servers refuse it",
    r"messages\[\]\.reasoning_details": "thinking goes back in the field that the host reads",
    r"messages\[\]\.content\[\]\.closed": "a thought of Mistral has a mark that it is complete",
    r"outputConfig\.textFormat\.structure\.jsonSchema\.schema": (
        "the schema is a text of JSON, which we write without spaces"
    ),
    r"generationConfig\.thinkingConfig": (
        "the model does not think, and a budget of 0 is what it has"
    ),
    r"messages\[\]\.reasoning_content": (
        "thinking goes back where the host reads it, and empty thinking of a turn is not sent"
    ),
    r"messages\[\]\.cache_control": "a mark on a message is put on its last block",
    r"messages\[\]\.content\[\]\.cache_control\.ttl": (
        "all marks of a request have one lifetime, the longest"
    ),
    r"cache_control": (
        "a mark of the request as a whole is put on its last blocks, as the server does"
    ),
    r"tools\[\]\.cache_control": "the same mark, on the last tool",
    r"output_format \(missing\)|output_config \(added\)": (
        "output_format is the old name of output_config.format"
    ),
    r"system$": (
        "blocks of instructions are joined by a blank line; a mark of the whole request is put on "
        "them"
    ),
    r"messages\[\]\.content$": (
        "one text with a mark is a list of one block; a document in a result is its JSON"
    ),
    r"response_format\.json_schema\.description": "an empty description is not sent",
    r"messages$": "an empty message of the assistant is not sent",
    r"reasoning\.summary": "a summary is asked for by a setting of the provider",
    r"tools\[\]\.functionDeclarations\[\]\.parameters\..*(nullable|type)": (
        "a value that may be null is described as JSON Schema does"
    ),
    r"response_format\.json_schema\.name": (
        "an empty name is refused by most servers: a hash of the schema stands in"
    ),
    r"messages\[\]\.content\[\]\.file\.filename": (
        "a file without a name is refused by most servers"
    ),
    r"stream_options": "padding of a stream is not asked for",
    r"contents\[\]\.parts\[\]\.functionResponse\.id": (
        "a result without an id gets that of its call"
    ),
    r"contents\[\]\.parts\[\]\.functionResponse": (
        "a result is text in our values: an object is sent as its JSON"
    ),
    r"contents\[\]\.parts$": "an empty text without a signature is left out",
    r"contents$": "a call that nothing answers is left out",
    r"toolConfig\.functionCallingConfig\.mode": (
        "VALIDATED is sent as AUTO, and we validate the calls"
    ),
    r"tools\[\]\.functionDeclarations$": (
        "several allowed functions are sent as that subset of the tools"
    ),
    r"toolConfig\.functionCallingConfig": (
        "several allowed functions are sent as that subset of the tools"
    ),
    r"messages\[\]\.content\[\]\.toolResult\.content": (
        "a result is text in our values: an object is sent as its JSON"
    ),
    r"messages\[\]\.content\[\]\.document\.name": (
        "the wire takes no underscore in the name of a document"
    ),
    r"messages\[\]\.(tool_calls\[\]\.id|tool_call_id)": (
        "this wire has no ids; a client sent another wire's"
    ),
    r"outputConfig \(missing\)|toolConfig \(added\)": (
        "On the bedrock wire a schema is requested by a tool, which more models accept"
    ),
}


def reason_of(place: str) -> str | None:
    """Return the documented reason for a difference at a path, or ``None`` if there is none."""
    return next((why for pattern, why in REASONS.items() if re.match(pattern, place)), None)


# --- comparing recorded requests ---------------------------------------------------------------


def recorded() -> Iterator[tuple[str, str, Body, str, str]]:
    """Yield the id, wire, body, URL path and origin of every complete recorded request that the
    server accepted.
    """
    with gzip.open(RECORDED, "rb") as lines:
        for line in lines:
            data = json.loads(line)
            wire = WIRES.get(data["provider"])
            body = data["request_json"]
            if (
                wire not in STEPS
                or data["op"] != "create"
                or data["request_elided"]
                or not isinstance(body, dict)
            ):
                continue
            url = urlsplit(data["url"] or "")
            path = url.path
            origin = f"https://{url.hostname}" if url.hostname else _NOWHERE
            if wire == "bedrock":
                path = f"/model/{data['model'] or 'm'}/converse{'-stream' * data['stream']}"
            elif wire != "gemini":
                # Some clients name the model only in the URL.
                body = {"model": data["model"] or "m", **body}
            elif ":" not in path.rpartition("/")[2]:
                path = f"/v1beta/models/{data['model'] or 'm'}:generateContent"
            if data["status"] == 200:
                yield data["id"], wire, body, path, origin


class Share(NamedTuple):
    """Counts for one wire: requests that our classes represent, requests that are encoded again
    without a difference, and the reasons for all others.
    """

    expressed: int
    same: int
    differing: Counter[str]
    reported: Counter[str]
    refused: Counter[str]
    lost: int  # the number of requests that were reported or rejected, for one or more reasons


def report() -> dict[str, Share]:
    """Decode and encode every recorded request again; count the outcomes for each wire."""
    outcomes: dict[str, list[Outcome]] = {}
    for _, wire, body, path, origin in recorded():
        outcomes.setdefault(wire, []).append(compare(wire, body, path, origin))
    return {wire: _sum_up(found) for wire, found in outcomes.items()}


def _sum_up(outcomes: list[Outcome]) -> Share:
    verdicts = Counter([outcome.verdict for outcome in outcomes])
    places = {
        verdict: Counter(
            [
                place
                for outcome in outcomes
                if outcome.verdict == verdict
                for place in outcome.places
            ]
        )
        for verdict in ("differs", "reported", "refused")
    }
    expressed = verdicts["same"] + verdicts["differs"]
    lost = verdicts["reported"] + verdicts["refused"]
    return Share(
        expressed, verdicts["same"], places["differs"], places["reported"], places["refused"], lost
    )


def _describe(same: int, expressed: int, lost: int) -> str:
    return f"{same} of {expressed} the same ({same / expressed:.1%}); {lost} not expressed"


# --- the table of results on the documentation page --------------------------------------------

PAGE = ROOT / "bench/README.md"
START = "<!-- requests -->\n"
END = "<!-- /requests -->\n"


def total(shares: Mapping[str, Share]) -> tuple[int, int, int]:
    """Return three sums over all wires: requests that stay equal, requests that our classes
    represent, and requests that they do not represent.
    """
    found = shares.values()
    return (
        sum([one.same for one in found]),
        sum([one.expressed for one in found]),
        sum([one.lost for one in found]),
    )


def write_table(shares: Mapping[str, Share]) -> str:
    """Return the counts as a Markdown table: a row for each wire, and a row with the sums."""
    same, expressed, lost = total(shares)
    rows = [(wire, shares[wire].same, shares[wire].expressed, shares[wire].lost) for wire in STEPS]
    lines = [f"{expressed + lost:,} requests were compared:", ""]
    lines += ["| wire | expressed | the same | not expressed |", "|---|---|---|---|"]
    for name, alike, of, rest in [*rows, ("all", same, expressed, lost)]:
        lines.append(f"| {name} | {of:,} | {alike:,}, {alike / of:.1%} | {rest:,} |")
    return "\n".join(lines) + "\n"


def with_table(page: str, shares: Mapping[str, Share]) -> str:
    """Replace the table of requests in the text of a page; return the new text."""
    before, _, rest = page.partition(START)
    return f"{before}{START}\n{write_table(shares)}\n{END}{rest.partition(END)[2]}"


def _print(shares: Mapping[str, Share], most: int) -> None:
    for name, share in shares.items():
        print(f"{name}: {_describe(share.same, share.expressed, share.lost)}")
        for place, count in share.differing.most_common(most):
            print(f"  {count:5} differ at {place}: {reason_of(place)}")
        for code, count in share.reported.most_common(most):
            print(f"  {count:5} reported: {code}")
        for reason, count in share.refused.most_common(most):
            print(f"  {count:5} refused: {reason}")
    print(f"all: {_describe(*total(shares))}")


if __name__ == "__main__":
    counted = report()
    if "--write" in sys.argv:
        PAGE.write_text(with_table(PAGE.read_text(), counted))
    else:
        _print(counted, int(sys.argv[1]) if len(sys.argv) > 1 else 12)
