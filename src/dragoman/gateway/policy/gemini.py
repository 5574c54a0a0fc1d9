"""The rule for each field of a Generate Content request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from ...messages import EFFORTS
from ...wire.gemini.names import to_camel, to_standard_base64
from ...wire.schema import schema_directive
from .hosted import read_hosted
from .rules import NOTHING, UNKNOWN, Prepared, Rule, Sorter, is_among

_READ = Rule("read")
_HINT = Rule("hint", "it does not change what the answer means")

NAMES = {
    "max_tokens": "generationConfig.maxOutputTokens",
    "stop_sequences": "generationConfig.stopSequences",
    "seed": "generationConfig.seed",
    "frequency_penalty": "generationConfig.frequencyPenalty",
    "presence_penalty": "generationConfig.presencePenalty",
    "top_k": "generationConfig.topK",
    "reasoning": "generationConfig.thinkingConfig",
    "json_mode": "generationConfig.responseMimeType",
    "parallel_tool_calls": "toolConfig",
}
TOGETHER = ("contents", "systemInstruction")
FIELDS: dict[str, Rule] = {
    **dict.fromkeys(
        ("contents", "systemInstruction", "generationConfig", "tools", "toolConfig"), _READ
    ),
    "safetySettings": Rule("hint", "the model's wire has no filters to set"),
    "labels": _HINT,
    "serviceTier": _HINT,
    "store": Rule("hint", "nothing is kept here between calls", default=(False,)),
    "model": Rule("hint", "the model is named by the path", always=True, default=()),
    "cachedContent": Rule("refused", "send the content itself, or ask a model of the same wire"),
}
CONFIG: dict[str, Rule] = {
    **dict.fromkeys(
        [
            "temperature",
            "topP",
            "maxOutputTokens",
            "stopSequences",
            "seed",
            "frequencyPenalty",
            "presencePenalty",
            "responseJsonSchema",
            "responseMimeType",
        ],
        _READ,
    ),
    "topK": Rule("mapped", concept="top_k"),
    "candidateCount": Rule(
        "hint", "one candidate is returned for each call", default=(1,), always=True
    ),
    "responseModalities": Rule("refused", "ask for TEXT only", default=(["TEXT"], ["text"])),
    "responseSchema": Rule("mapped", "it is sent as JSON Schema"),
    "thinkingConfig": Rule("mapped", "the budget or level is translated"),
    "responseLogprobs": Rule(
        "refused", "ask a model of the same wire, or leave it out", default=(False,)
    ),
    "logprobs": Rule("refused", "ask a model of the same wire, or leave it out", default=(0,)),
    "speechConfig": Rule("refused", "ask for TEXT only"),
    "imageConfig": Rule("refused", "ask for TEXT only"),
    "mediaResolution": Rule(
        "hint", "the model decides how closely it looks", default=("MEDIA_RESOLUTION_UNSPECIFIED",)
    ),
    "audioTimestamp": _HINT,
    "enableAffectiveDialog": _HINT,
    "enableEnhancedCivicAnswers": _HINT,
    "routingConfig": Rule("hint", "which model answers is decided here"),
    "modelSelectionConfig": Rule("hint", "which model answers is decided here"),
}
_PART_NAMES = (
    "text",
    "thought",
    "thoughtSignature",
    "inlineData",
    "fileData",
    "functionCall",
    "functionResponse",
)
_PART = Rule("refused", "send text, images, files, calls and their responses")
_SERVER_TOOL = Rule("refused", "offer functions of your own, or ask a model of the same wire")


def prepare(body: Mapping[str, Any]) -> Prepared:
    """Return the request body in a form that the server codec of this wire can decode.

    Names are converted to camel case, and data to standard base64.
    """
    client = to_camel(body)
    sorter = Sorter(FIELDS, TOGETHER)
    made = sorter.sort_root(client)
    _sort_contents(made, sorter)
    if isinstance(made.get("tools"), list | dict):
        tools = made["tools"]
        made["tools"] = _sort_tools(tools if isinstance(tools, list) else [tools], sorter)
    _sort_choice(made, sorter)
    if isinstance(made.get("generationConfig"), dict):
        _sort_config(made, sorter)
    return sorter.done(made, client)


# --- preparing the conversation ----------------------------------------------------------------


def _sort_contents(made: dict[str, Any], sorter: Sorter) -> None:
    contents = made.get("contents")
    if isinstance(contents, dict | str):
        contents = [contents]
    if isinstance(contents, list):
        made["contents"] = [
            _sort_content(each, f"contents[{at}]", sorter) for at, each in enumerate(contents)
        ]
    system = made.get("systemInstruction")
    if isinstance(system, str):
        made["systemInstruction"] = {"parts": [{"text": system}]}
    elif isinstance(system, dict):
        kept = sorter.keep(system, "systemInstruction", ("role", "parts"))
        parts = kept.get("parts")
        if isinstance(parts, dict):
            parts = [parts]
        if isinstance(parts, list):
            kept["parts"] = [
                sorter.keep(part, f"systemInstruction.parts[{at}]", ("text",))
                if isinstance(part, dict)
                else part
                for at, part in enumerate(parts)
            ]
        made["systemInstruction"] = kept


def _sort_content(content: Any, path: str, sorter: Sorter) -> Any:
    if isinstance(content, str):
        return {"role": "user", "parts": [{"text": content}]}
    if not isinstance(content, dict):
        return content
    made = sorter.keep(content, path, ("role", "parts"))
    parts = made.get("parts")
    if isinstance(parts, dict):
        parts = [parts]
    if isinstance(parts, list):
        role = made.get("role") or "user"
        made["parts"] = [
            _sort_part(part, f"{path}.parts[{at}]", role, sorter) for at, part in enumerate(parts)
        ]
    return made


def _sort_part(part: Any, path: str, role: Any, sorter: Sorter) -> Any:
    if isinstance(part, str):
        return {"text": part}
    if not isinstance(part, dict):
        return part
    part = {name: value for name, value in part.items() if value is not None}
    if not any(name in part for name in _PART_NAMES):
        if role == "model":
            return part  # return an unknown part unchanged to the provider that issued it
        sorter.leave(path, _PART, "content_dropped")
        return {"text": "[content of another kind]"}
    made = sorter.keep(part, path, _PART_NAMES) if role != "model" else part
    for name, names in (
        ("inlineData", ("mimeType", "data")),
        ("fileData", ("mimeType", "fileUri")),
    ):
        if isinstance(made.get(name), dict):
            made[name] = sorter.keep(made[name], f"{path}.{name}", names, {"displayName": _HINT})
    inline = made.get("inlineData")
    if isinstance(inline, dict) and isinstance(inline.get("data"), str):
        inline["data"] = to_standard_base64(inline["data"])
    response = made.get("functionResponse")
    if isinstance(response, dict):
        made["functionResponse"] = sorter.keep(
            response, f"{path}.functionResponse", ("id", "name", "response")
        )
    return made


# --- preparing tools ---------------------------------------------------------------------------


def _sort_tools(tools: list[Any], sorter: Sorter) -> list[Any]:
    made = []
    others = []
    for at, tool in enumerate(tools):
        if not isinstance(tool, dict):
            made.append(tool)
            continue
        declared = tool.get("functionDeclarations")
        if isinstance(declared, list) and declared:
            path = f"tools[{at}].functionDeclarations"
            made.append(
                {
                    "functionDeclarations": [
                        _sort_tool(each, f"{path}[{i}]", sorter) for i, each in enumerate(declared)
                    ]
                }
            )
        names = [
            name for name in tool if name != "functionDeclarations" and tool[name] is not None
        ]
        others += [
            (f"tools[{at}].{name}", read_hosted("gemini", name, tool[name])) for name in names
        ]
    for path, hosted in others:
        sorter.leave(path, _SERVER_TOOL, "server_tool_dropped", hosted)
    return made


def _sort_tool(tool: Any, path: str, sorter: Sorter) -> Any:
    if not isinstance(tool, dict):
        return tool
    names = ("name", "description", "parameters", "parametersJsonSchema")
    return_value = Rule("hint", "the model's wire has no schema of a result")
    rules = dict.fromkeys(("response", "responseJsonSchema"), return_value)
    made = sorter.keep(
        tool, path, names, {**rules, "behavior": Rule("hint", default=("BLOCKING", "UNSPECIFIED"))}
    )
    for name in ("parameters", "parametersJsonSchema"):
        if isinstance(made.get(name), dict):
            made[name] = to_json_schema(made[name])
    return made


def to_json_schema(schema: Any) -> Any:
    """Convert a schema of this wire's dialect (upper-case types, ``nullable``) to JSON Schema."""
    if isinstance(schema, list):
        return [to_json_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made: dict[str, Any] = {}
    for given, value in schema.items():
        name = _DIALECT.get(str(given), str(given))
        if name == "properties" and isinstance(value, dict):
            made[name] = {key: to_json_schema(each) for key, each in value.items()}
        elif name in ("enum", "default", "example", "required", "const"):
            made[name] = value
        elif name == "type" and isinstance(value, str):
            made[name] = value.lower()
        elif name in _NUMBERS and isinstance(value, str) and value.isdecimal():
            made[name] = int(value)
        elif name not in ("nullable", "propertyOrdering"):
            made[name] = to_json_schema(value)
    if schema.get("nullable") is True and isinstance(made.get("type"), str):
        made["type"] = [made["type"], "null"]
    return made


_NUMBERS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
_DIALECT: dict[str, str] = {
    **{re.sub("[A-Z]", lambda found: "_" + found[0].lower(), name): name for name in _NUMBERS},
    "any_of": "anyOf",
    "property_ordering": "propertyOrdering",
}


def _sort_choice(made: dict[str, Any], sorter: Sorter) -> None:
    config = made.get("toolConfig")
    if not isinstance(config, dict):
        return
    kept = sorter.keep(config, "toolConfig", ("functionCallingConfig",))
    calling = kept.get("functionCallingConfig")
    if not isinstance(calling, dict):
        made["toolConfig"] = kept
        return
    calling = sorter.keep(
        calling, "toolConfig.functionCallingConfig", ("mode", "allowedFunctionNames")
    )
    mode, names = str(calling.get("mode") or "AUTO").upper(), calling.get("allowedFunctionNames")
    # Other wires have no mode for validated calls and need none: the gateway always validates
    # calls against the tool schemas.
    if mode in ("VALIDATED", "MODE_UNSPECIFIED"):
        sorter.own["toolConfig"] = config
        mode = "AUTO"
    if isinstance(names, list) and names and (len(names) > 1 or mode != "ANY"):
        sorter.own |= {"toolConfig": config, "tools": sorter.own.get("tools", made.get("tools"))}
        made["tools"] = _keep_allowed(made.get("tools"), names)
        names = None
    made["toolConfig"] = {
        "functionCallingConfig": {
            "mode": mode,
            **({"allowedFunctionNames": names} if names else {}),
        }
    }


def _keep_allowed(tools: Any, names: list[Any]) -> list[Any]:
    kept = []
    for tool in tools if isinstance(tools, list) else ():
        declared = tool.get("functionDeclarations") if isinstance(tool, dict) else None
        allowed = [
            each for each in declared or () if isinstance(each, dict) and each.get("name") in names
        ]
        if allowed:
            kept.append({"functionDeclarations": allowed})
    return kept


# --- preparing settings ------------------------------------------------------------------------


def _sort_config(made: dict[str, Any], sorter: Sorter) -> None:
    config = made["generationConfig"]
    kept: dict[str, Any] = {}
    for name, value in config.items():
        rule = CONFIG.get(name)
        if rule is not None and rule.effect == "read":
            kept[name] = value
        elif is_among(value, NOTHING) or (rule is not None and is_among(value, rule.default)):
            continue
        elif name == "thinkingConfig" and isinstance(value, dict):
            _sort_thinking(value, sorter)
        elif name == "responseSchema" and isinstance(value, dict):
            sorter.own.setdefault("generationConfig", {}).update(
                {name: value, "responseJsonSchema": None}
            )
            kept["responseJsonSchema"] = to_json_schema(value)
        elif rule is not None and rule.concept is not None:
            sorter.wish(rule.concept, value)
        else:
            sorter.leave(f"generationConfig.{name}", rule or UNKNOWN)
            if rule is None or not rule.always:
                sorter.own.setdefault("generationConfig", {})[name] = value
    sorter.left = [
        left if left.roots != ("generationConfig",) else replace(left, roots=())
        for left in sorter.left
    ]
    made["generationConfig"] = kept
    _sort_format(made, kept, sorter)


def _sort_thinking(thinking: dict[str, Any], sorter: Sorter) -> None:
    sorter.own.setdefault("generationConfig", {})["thinkingConfig"] = thinking
    budget, level = thinking.get("thinkingBudget"), thinking.get("thinkingLevel")
    if type(budget) is int and budget >= 0:
        sorter.wish("reasoning", budget or "none")
    elif isinstance(level, str) and level.lower() in EFFORTS:
        sorter.wish("reasoning", level.lower())


def _sort_format(made: dict[str, Any], config: dict[str, Any], sorter: Sorter) -> None:
    """Convert the fields for the answer's format: plain text, JSON, or JSON with a schema."""
    schema, kind = config.get("responseJsonSchema"), config.get("responseMimeType")
    own = sorter.own.setdefault("generationConfig", {})
    if schema is None:
        config.pop("responseMimeType", None)
        if kind == "application/json":
            sorter.wish("json_mode", True)
        elif kind not in (None, "", "text/plain"):
            sorter.leave(
                "generationConfig.responseMimeType",
                Rule("refused", "ask for application/json or text/plain"),
            )
        return
    if kind in (None, ""):
        config["responseMimeType"] = "application/json"
    if isinstance(schema, dict) and schema.get("type") != "object" and not _is_object(schema):
        own |= {"responseMimeType": kind or "application/json"}
        own.setdefault("responseJsonSchema", schema)
        del config["responseJsonSchema"], config["responseMimeType"]
        sorter.leave(
            "generationConfig.responseSchema",
            Rule("mapped", "it is asked for in words"),
            "schema_in_words",
        )
        sorter.directives.append(schema_directive(schema))


def _is_object(schema: Mapping[str, Any]) -> bool:
    return "type" not in schema and isinstance(schema.get("properties"), dict)


def unwrap_count(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the request whose tokens are counted.

    The body contains the request either directly or in the field ``generateContentRequest``.
    """
    camel = to_camel(body)
    inner = camel.get("generateContentRequest")
    return inner if isinstance(inner, dict) else camel
