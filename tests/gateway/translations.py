"""Requests of five wires, and what becomes of them for a model of each wire.

A row has the client's wire, fields of the request, and the outcome. A name with dots stands for
nested objects. An outcome is a text, ``Rejected`` or, by the model's wire, one of these or the
fields that the model's server receives. A text is part of the warning in the reply's header. An
outcome without a wire is the outcome for every other wire than the client's: a model of the
client's wire receives the fields unchanged.
"""

from typing import Any, NamedTuple

from dragoman.wire.losses import merge

from .upstream import BODIES, WIRES


class Rejected(NamedTuple):
    """The outcome of a request that has status 400, and a part of the error message."""

    text: str


Outcome = str | Rejected | dict[str, Any]
Row = tuple[str, dict[str, Any], Outcome | dict[str, Outcome]]

LIMITS: dict[str, dict[str, Any]] = {
    "openai": {"max_tokens": 9},
    "responses": {"max_output_tokens": 9},
    "anthropic": {},
    "gemini": {"generationConfig": {"maxOutputTokens": 9}},
    "ollama": {"options": {"num_predict": 9}},
    "cohere": {"max_tokens": 9},
    "bedrock": {"inferenceConfig": {"maxTokens": 9}},
}


def expand(fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields in which each name with dots is replaced by nested objects."""
    made: dict[str, Any] = {}
    for path, value in fields.items():
        for name in reversed(path.split(".")):
            value = {name: value}
        made = merge(made, value)
    return made


def limited(client: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the expanded fields with a token limit, without which a warning reports one."""
    return merge(LIMITS[client], expand(fields))


def turn(role: str, content: Any, **more: Any) -> dict[str, Any]:
    """Return a message."""
    return {"role": role, "content": content, **more}


def with_call(**changes: Any) -> dict[str, Any]:
    """Return a Chat Completions conversation with a tool call, in which fields are changed."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    answer = {"role": "assistant", "tool_calls": [{**call, **changes}]}
    return {"messages": [USER, answer, turn("tool", "Done", tool_call_id="c")]}


def with_part(client: str, part: dict[str, Any]) -> dict[str, Any]:
    """Return a conversation of one user message, which has one content part."""
    if client == "gemini":
        return {"contents": [{"role": "user", "parts": [part]}]}
    return {"input" if client == "responses" else "messages": [turn("user", [part])]}


USER, SAID = turn("user", "Hi"), turn("assistant", "Hello")
MOVED = [USER, SAID, turn("system", "Be brief."), USER]
PNG = "iVBORw0KGgo="
PICTURE = f"data:image/png;base64,{PNG}"
NO_FIELDS = {"type": "object", "properties": {}}
CACHE = {"type": "ephemeral"}
MARKED = {"type": "text", "text": "Hi", "cache_control": CACHE}
FUNCTION = {"name": "f", "description": "d", "parameters": NO_FIELDS}
TOOLS: dict[str, dict[str, Any]] = {
    "openai": {"type": "function", "function": FUNCTION},
    "responses": {"type": "function", **FUNCTION},
    "anthropic": {"name": "f", "description": "d", "input_schema": NO_FIELDS},
    "gemini": {"functionDeclarations": [FUNCTION]},
    "ollama": {"type": "function", "function": FUNCTION},
}
STRICT_TOOL = {
    "type": "function",
    "function": {**FUNCTION, "parameters": {**NO_FIELDS, "additionalProperties": False,
                                            "required": []}, "strict": True},
}  # fmt: skip
OTHER_TOOL = {"type": "function", "function": {**FUNCTION, "name": "g"}}
ALLOWED = {"mode": "required", "tools": [{"type": "function", "function": {"name": "g"}}]}
JSON = {"type": "json_object"}
JSON_MODE: dict[str, Outcome] = {
    "openai": {"response_format": JSON},
    "responses": {"text.format": JSON},
    "anthropic": {"system": "JSON object"},
    "gemini": {"generationConfig.responseMimeType": "application/json"},
    "ollama": {"format": "json"},
}

SETTINGS: list[Row] = [
    ("openai", {"response_format": JSON}, JSON_MODE),
    ("gemini", {"generationConfig.responseMimeType": "application/json"}, JSON_MODE),
    ("ollama", {"format": "json"}, JSON_MODE),
    ("responses", {"text": {"format": JSON, "verbosity": "low"}}, {
        "openai": {"response_format": JSON, "verbosity": "low"},
        "responses": {"text": {"format": JSON, "verbosity": "low"}},
        "anthropic": "verbosity_dropped verbosity",
    }),
    ("openai", {"tools": [TOOLS["openai"]], "parallel_tool_calls": False}, {
        "openai": {"parallel_tool_calls": False},
        "responses": {"parallel_tool_calls": False},
        "anthropic": {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        "gemini": "parallel_tool_calls_dropped parallel_tool_calls",
        "ollama": "parallel_tool_calls_dropped parallel_tool_calls",
    }),
    ("anthropic", {"tools": [TOOLS["anthropic"]],
                   "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}, {
        "openai": {"parallel_tool_calls": False, "tool_choice": "required"},
        "responses": {"parallel_tool_calls": False, "tool_choice": "required"},
        "anthropic": {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
    }),
    ("openai", {"tools": [TOOLS["openai"], OTHER_TOOL],
                "tool_choice": {"type": "allowed_tools", "allowed_tools": ALLOWED}}, {
        "openai": {"tool_choice.type": "allowed_tools"},
        "anthropic": {"tool_choice.type": "any", "tools": [{**TOOLS["anthropic"], "name": "g"}]},
    }),
    ("gemini", {"tools": [TOOLS["gemini"]], "toolConfig.functionCallingConfig.mode": "VALIDATED"},
     {"openai": {"tool_choice": "auto"},
      "gemini": {"toolConfig.functionCallingConfig.mode": "VALIDATED"}}),
    ("anthropic", {"top_k": 7}, {
        "openai": "top_k_dropped top_k",
        "responses": "top_k_dropped top_k",
        "anthropic": {"top_k": 7},
        "gemini": {"generationConfig.topK": 7},
        "ollama": {"options.top_k": 7},
    }),
    ("gemini", {"generationConfig.topK": 7}, {"openai": "top_k_dropped generationConfig.topK",
                                              "anthropic": {"top_k": 7},
                                              "ollama": {"options.top_k": 7}}),
    ("ollama", {"options": {"num_ctx": 99, "top_k": 7}}, "field_dropped options.num_ctx"),
    ("openai", {"user": "u"},
     {"anthropic": {"metadata.user_id": "u"}, "gemini": "user_dropped user"}),
    ("anthropic", {"metadata.user_id": "u"},
     {"openai": {"user": "u"}, "anthropic": {"metadata.user_id": "u"}}),
    ("openai", {"seed": 4, "frequency_penalty": 0.5}, {
        "openai": {"seed": 4, "frequency_penalty": 0.5},
        "responses": "frequency_penalty_dropped frequency_penalty; seed_dropped seed",
        "anthropic": "frequency_penalty_dropped frequency_penalty; seed_dropped seed",
        "gemini": {"generationConfig": {"seed": 4, "frequencyPenalty": 0.5}},
        "ollama": {"options": {"seed": 4, "frequency_penalty": 0.5}},
    }),
    ("openai", {"max_tokens": None}, {"anthropic": "max_tokens_added max_tokens"}),
    ("openai", {"made_up": 1}, "field_dropped made_up"),
    ("responses", {"made_up": 1}, "field_dropped made_up"),
    ("anthropic", {"made_up": 1}, "field_dropped made_up"),
    ("gemini", {"madeUp": 1}, "field_dropped madeUp"),
    ("gemini", {"generationConfig.own": 2}, "field_dropped generationConfig.own"),
    ("cohere", {"made_up": 1}, "field_dropped made_up"),
    ("bedrock", {"madeUp": 1}, "field_dropped madeUp"),
    ("bedrock", {"system": [{"cachePoint": {"type": "default"}}, {"text": "S"}]},
     "cache_point_dropped system[0]"),
]  # fmt: skip

# Settings without an equivalent: those that change the meaning of the answer are rejected.
LACKING: list[Row] = [
    ("openai", {"n": 2}, dict.fromkeys(WIRES, "n_dropped n")),
    ("openai", {"logprobs": True}, Rejected("logprobs")),
    ("openai", {"top_logprobs": 3}, Rejected("top_logprobs")),
    ("openai", {"modalities": ["text", "audio"]}, Rejected("modalities")),
    ("openai", {"functions": [FUNCTION]}, Rejected("functions")),
    ("responses", {"top_logprobs": 3}, Rejected("top_logprobs")),
    ("responses", {"client_metadata": {"a": "b"}}, "client_metadata_dropped client_metadata"),
    ("anthropic", {"mcp_servers": [{"url": "http://x"}]},
     dict.fromkeys(WIRES, Rejected("mcp_servers"))),
    ("anthropic", {"container": "c"}, {"anthropic": {"container": "c"}}),
    ("gemini", {"generationConfig.candidateCount": 2},
     dict.fromkeys(WIRES, "candidateCount_dropped")),
    ("gemini", {"safetySettings": [{"category": "A", "threshold": "B"}]},
     "safetySettings_dropped safetySettings"),
    ("gemini", {"labels": {"a": "b"}}, "labels_dropped labels"),
    ("gemini", {"cachedContent": "c"}, Rejected("cachedContent")),
    ("gemini", {"generationConfig.responseModalities": ["IMAGE"]},
     Rejected("generationConfig.responseModalities")),
    ("ollama", {"logprobs": True}, Rejected("logprobs")),
]  # fmt: skip

REASONING: list[Row] = [
    ("anthropic", {"thinking": {"type": "enabled", "budget_tokens": 2000}, "max_tokens": 4000},
     {"openai": {"reasoning_effort": "low"}, "responses": {"reasoning.effort": "low"},
      "anthropic": {"thinking": {"type": "enabled", "budget_tokens": 2000}, "max_tokens": 4000},
      "gemini": {"generationConfig.thinkingConfig.thinkingBudget": 2000}}),
    ("openai", {"reasoning_effort": "medium", "max_tokens": 100}, {
        "openai": {"reasoning_effort": "medium"},
        "anthropic": {"thinking": {"type": "enabled", "budget_tokens": 8192}, "max_tokens": 8292},
        "gemini": {"generationConfig.thinkingConfig.thinkingLevel": "medium"},
    }),
    ("openai", {"reasoning_effort": "max"},
     {"openai": {"reasoning_effort": "max"}, "responses": {"reasoning.effort": "xhigh"}}),
    ("anthropic", {"thinking.type": "adaptive", "output_config.effort": "max"},
     {"openai": {"reasoning_effort": "xhigh"},
      "anthropic": {"thinking.type": "adaptive", "output_config.effort": "max"}}),
    ("anthropic", {"thinking.type": "disabled"},
     {"openai": {"reasoning_effort": "none"}, "ollama": {"think": False}}),
    ("anthropic", {"thinking.type": "adaptive"}, {"openai": "thinking_adaptive thinking"}),
    ("gemini", {"generationConfig.thinkingConfig": {
        "includeThoughts": True, "thinkingLevel": "HIGH",
    }}, {
        "openai": {"reasoning_effort": "high"},
        "gemini": {"generationConfig.thinkingConfig": {"includeThoughts": True,
                                                       "thinkingLevel": "HIGH"}},
    }),
    ("openai", {"reasoning.max_tokens": 9000}, {"openai": {"reasoning.max_tokens": 9000}}),
    ("openai", {"enable_thinking": False}, {"openai": {"enable_thinking": False}, "gemini": {}}),
    ("ollama", {"think": True}, {"openai": {"reasoning_effort": "medium"}}),
    ("responses", {"reasoning.summary": "detailed"},
     {"openai": "summary_dropped reasoning.summary"}),
]  # fmt: skip

# Tools that the provider runs: they are mapped if both providers have them.
BERLIN = {"type": "approximate", "city": "Berlin"}
SEARCHING = {"type": "web_search_20250305", "name": "web_search"}
RUNNING = {"type": "code_execution_20250825", "name": "code_execution"}
INTERPRETER = {"type": "code_interpreter", "container": {"type": "auto"}}
LOCAL_SEARCH = {
    "type": "web_search", "user_location": BERLIN, "filters": {"allowed_domains": ["a.test"]},
}  # fmt: skip
HOSTED: list[Row] = [
    ("responses", {"tools": [LOCAL_SEARCH]}, {
        "anthropic": {"tools": [{**SEARCHING, "allowed_domains": ["a.test"],
                                 "user_location": BERLIN}]},
        "gemini": Rejected("tools[0]"),
        "openai": Rejected("tools[0]"),
        "ollama": Rejected("tools[0]"),
    }),
    ("responses", {"tools": [INTERPRETER, TOOLS["responses"]]},
     {"anthropic": {"tools": [TOOLS["anthropic"], RUNNING]},
      "gemini": "hosted_tool_dropped tools[0]", "openai": {"tools": [TOOLS["openai"]]}}),
    ("responses", {"tools": [{**INTERPRETER, "container": "cntr_1"}]},
     {"anthropic": Rejected("tools[0]")}),
    ("responses", {"tools": [{"type": "file_search", "vector_store_ids": ["vs_1"]}]},
     Rejected("tools[0]")),
    ("responses", {"tools": [{"type": "web_search", "search_context_size": "low"},
                             {"type": "web_search_preview"}]},
     {"anthropic": "tool_option_dropped tools[0].search_context_size"}),
    ("responses", {"tools": [TOOLS["responses"], {"type": "web_search"}]},
     {"openai": "hosted_tool_dropped tools[1]"}),
    ("anthropic", {"tools": [{**SEARCHING, "type": "web_search_20260209",
                              "allowed_domains": ["a.test"]}]}, {
        "responses": {"tools": [{"type": "web_search",
                                 "filters": {"allowed_domains": ["a.test"]}}]},
        "gemini": Rejected("tools[0]"),
    }),
    ("anthropic", {"tools": [SEARCHING]},
     {"gemini": {"tools": [{"googleSearch": {}}]}, "openai": Rejected("tools[0]")}),
    ("anthropic", {"tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]},
     {"gemini": {"tools": [{"urlContext": {}}]}, "responses": Rejected("tools[0]")}),
    ("anthropic", {"tools": [{"type": "bash_20250124", "name": "b"}]}, Rejected("tools[0]")),
    ("gemini", {"tools": [{"googleSearch": {}}, {"codeExecution": {}}]}, {
        "gemini": {"tools": [{"googleSearch": {}}, {"codeExecution": {}}]},
        "anthropic": {"tools": [SEARCHING, RUNNING]},
        "responses": {"tools": [{"type": "web_search"}, INTERPRETER]},
        "ollama": Rejected("tools[0].googleSearch"),
    }),
    ("gemini", {"tools": [{"googleSearch": {"excludeDomains": ["a"]}}]},
     {"anthropic": {"tools": [{**SEARCHING, "blocked_domains": ["a"]}]}}),
    ("gemini", {"tools": [{"googleMaps": {}}]}, Rejected("tools[0].googleMaps")),
    ("openai", {"web_search_options.user_location": {
        "type": "approximate", "approximate": {"city": "Berlin"},
    }}, {
        "anthropic": {"tools": [{**SEARCHING, "user_location": BERLIN}]},
        "responses": {"tools": [{"type": "web_search", "user_location": BERLIN}]},
        "gemini": {"tools": [{"googleSearch": {}}]},
        "ollama": Rejected("web_search_options"),
    }),
]  # fmt: skip

# Conversations that only some wires accept as they are.
CONVERSATIONS: list[Row] = [
    ("openai", {"messages": MOVED}, "system_moved"),
    ("openai", {"messages": [USER, SAID, turn("developer", "Be brief."), USER]}, "system_moved"),
    ("openai", {"messages": [SAID, USER]}, "opening_added"),
    ("openai", {"messages": [turn("system", "Say hi.")]}, "system_sent_as_user"),
    ("openai", {"messages": [USER, SAID]}, "prefill_rewritten"),
    ("openai", {"messages": [turn("user", "")]}, "empty_text_filled"),
    ("anthropic", {"messages": MOVED}, "system_moved"),
    ("anthropic", {"messages": [USER, turn("assistant", "{")]}, "prefill_rewritten"),
    ("responses", {"input": [USER, SAID, turn("developer", "Be brief."), USER]}, "system_moved"),
    ("responses", {"input": [SAID, USER]}, "opening_added"),
    ("responses", {"input": [turn("system", "Say hi.")]}, "system_sent_as_user"),
    ("gemini", {"contents": [{"role": "model", "parts": [{"text": "Hello"}]},
                             {"parts": [{"text": "Hi"}]}]}, "opening_added"),
    ("gemini", {"contents": [{"parts": [{"text": "Hi"}]},
                             {"role": "model", "parts": [{"text": "He"}]}]}, "prefill_rewritten"),
    ("ollama", {"messages": MOVED}, "system_moved"),
    ("ollama", {"messages": [USER, SAID]}, "prefill_rewritten"),
]  # fmt: skip

# Fields inside a message, a tool or a setting.
PARTS: list[Row] = [
    ("openai", {"messages": [{**USER, "x": 1}]}, "field_dropped messages[0].x"),
    ("openai", {"messages": [{**USER, "name": "ann"}]}, "name_dropped messages[0].name"),
    ("openai", {"messages": [{**USER, "cache_control": CACHE}]}, "cache_control_dropped"),
    ("openai", {"messages": [USER, {**SAID, "thinking_blocks": [{"a": 1}]}, USER]},
     "field_dropped messages[1].thinking_blocks"),
    ("openai", with_part("openai", {"type": "text", "text": "Hi", "x": 1}),
     "field_dropped messages[0].content[0].x"),
    ("openai", with_part("openai", MARKED),
     "cache_control_dropped messages[0].content[0].cache_control"),
    ("openai", with_part("openai", {"type": "image_url", "image_url": {"url": PICTURE, "x": 1}}),
     "field_dropped messages[0].content[0].image_url.x"),
    ("openai", with_part("openai", {"type": "file", "file": {"file_id": "f"}}),
     Rejected("messages[0].content[0]")),
    ("openai", with_call(x=1), "field_dropped messages[1].tool_calls[0].x"),
    ("openai", with_call(function={"name": "f", "arguments": "{}", "x": 1}),
     "field_dropped messages[1].tool_calls[0].function.x"),
    ("openai", with_call(function={"name": "f", "arguments": "no JSON"}),
     "arguments_rewritten messages[1].tool_calls[0]"),
    ("openai", with_call(type="custom", custom={"name": "f", "input": "x"}),
     "custom_call_rewritten messages[1].tool_calls[0]"),
    ("openai", {"messages": [*with_call()["messages"][:2],
                             turn("tool", "r", tool_call_id="c", name="f")]},
     "name_dropped messages[2].name"),
    ("openai", {"tools": [{"type": "function", "function": {**FUNCTION, "x": 1}}]},
     "field_dropped tools[0].function.x"),
    ("openai", {"tools": [STRICT_TOOL]},
     {"openai": {"tools": [STRICT_TOOL]}, "gemini": "strict_dropped tools[0].strict"}),
    ("openai", {"tools": [{**TOOLS["openai"], "cache_control": CACHE}]},
     "cache_control_dropped tools[0].cache_control"),
    ("openai", {"tools": [{"type": "x"}]}, Rejected("tools[0]")),
    ("openai", {"response_format": {
        "type": "json_schema", "json_schema": {"name": "n", "schema": NO_FIELDS, "x": 1},
    }}, "field_dropped response_format.json_schema.x"),
    ("responses", {"input": [{"type": "message", **USER, "x": 1}]}, "field_dropped input[0].x"),
    ("responses", with_part("responses", {"type": "input_text", "text": "Hi", "x": 1}),
     "field_dropped input[0].content[0].x"),
    ("responses", with_part("responses", {"type": "input_file", "file_id": "f"}),
     Rejected("input[0].content[0]")),
    ("responses", {"input": [
        USER,
        {"type": "custom_tool_call", "call_id": "c", "name": "p", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "y"},
    ]}, "custom_call_rewritten input[1]; custom_output_rewritten input[2]"),
    ("responses", {"input": [
        USER,
        {"type": "function_call", "call_id": "c", "namespace": "n", "name": "f",
         "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "Done"},
    ]}, "namespace_joined input[1]"),
    ("responses", {"tools": [{"type": "custom", "name": "p"}]}, "custom_tool_rewritten tools[0]"),
    ("responses", {"tools": [{**TOOLS["responses"], "defer_loading": True}]},
     "defer_loading_dropped tools[0].defer_loading"),
    ("responses", {"tools": [{"type": "namespace", "name": "n", "description": "d",
                              "tools": [TOOLS["responses"]]}]}, "namespace_joined tools[0]"),
    ("responses", {"text.x": 1}, "field_dropped text.x"),
    ("responses", {"text.format": {"type": "json_schema", "name": "n", "schema": NO_FIELDS,
                                   "x": 1}}, "field_dropped text.format.x"),
    ("anthropic", {"system": [MARKED]}, "cache_control_dropped system[0].cache_control"),
    ("anthropic", {"messages": [{**USER, "x": 1}]}, "field_dropped messages[0].x"),
    ("anthropic", with_part("anthropic", {"type": "text", "text": "Hi", "x": 1}),
     "field_dropped messages[0].content[0].x"),
    ("anthropic", with_part("anthropic", MARKED),
     "cache_control_dropped messages[0].content[0].cache_control"),
    ("anthropic", with_part("anthropic", {"type": "search_result", "source": "s", "title": "t",
                                          "content": [{"type": "text", "text": "x"}]}),
     "search_result_rewritten"),
    ("anthropic", with_part("anthropic", {
        "type": "document",
        "source": {"type": "content", "content": [{"type": "text", "text": "T"}]},
    }), {"openai": "document_joined messages[0].content[0].source"}),
    ("anthropic",
     with_part("anthropic", {"type": "document", "source": {"type": "file", "file_id": "f"}}),
     dict.fromkeys(WIRES, Rejected("messages[0].content[0]"))),
    ("anthropic", {"tools": [{**TOOLS["anthropic"], "defer_loading": True}]},
     "defer_loading_dropped tools[0].defer_loading"),
    ("anthropic", {"tools": [{**TOOLS["anthropic"], "cache_control": CACHE}]},
     "cache_control_dropped tools[0].cache_control"),
    ("anthropic", {"tools": [{**TOOLS["anthropic"], "x": 1}]}, "field_dropped tools[0].x"),
    ("anthropic", {"output_config.x": 1}, "field_dropped output_config.x"),
    ("gemini", {"systemInstruction.parts": [{"text": "S", "x": 1}]},
     "field_dropped systemInstruction.parts[0].x"),
    ("gemini", {"contents": [{"role": "user", "parts": [{"text": "Hi"}], "x": 1}]},
     "field_dropped contents[0].x"),
    ("gemini", with_part("gemini", {
        "inlineData": {"mimeType": "image/png", "data": PNG, "displayName": "d"},
    }), "displayName_dropped contents[0].parts[0].inlineData.displayName"),
    ("gemini", with_part("gemini", {"x": 1}), Rejected("contents[0].parts[0]")),
    ("gemini", {"tools": [{"functionDeclarations": [{"name": "f", "behavior": "NON_BLOCKING"}]}]},
     "behavior_dropped tools[0].functionDeclarations[0].behavior"),
    ("gemini", {"toolConfig.x": 1}, "field_dropped toolConfig.x"),
    ("gemini", {"generationConfig": {
        "responseMimeType": "application/json",
        "responseSchema": {"type": "ARRAY", "items": {"type": "STRING"}},
    }}, "schema_in_words generationConfig.responseSchema"),
    ("ollama", {"messages": [{**USER, "x": 1}]}, "field_dropped messages[0].x"),
    ("ollama", {"tools": [{"type": "function", "function": {**FUNCTION, "x": 1}}]},
     "field_dropped tools[0].function.x"),
]  # fmt: skip

ROWS = [*SETTINGS, *LACKING, *REASONING, *HOSTED, *CONVERSATIONS, *PARTS]


def bodies(client: str) -> list[dict[str, Any]]:
    """Return the request bodies of all rows of a client's wire."""
    return [{**BODIES[client], **expand(fields)} for wire, fields, _ in ROWS if wire == client]
