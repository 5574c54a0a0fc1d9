"""Loops of thinking and tools reach each vendor in the form that it demands.

The checkers are the rules of the vendors, as their documentation and their error replies state them
(see the sources in ``catalog/families``). A checker returns the vendor's error, or nothing.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

import dragoman as d
from dragoman.events import fold
from dragoman.wire import CODECS, SERVER_CODECS
from dragoman.wire.beliefs import list_known_fields
from dragoman.wire.openai.quirks import Quirks
from dragoman.wire.server import Asked
from tests.wire.cases import decode

TOOLS = (d.Tool("lookup", "Looks.", parameters={"type": "object", "properties": {}}),)
Body = dict[str, Any]
Checker = Callable[[Body], str | None]


def turns(body: Body) -> list[Body]:
    return [each for each in body["messages"] if each["role"] == "assistant"]


def thinks(body: Body) -> bool:
    return body.get("thinking") != {"type": "disabled"}


def check_deepseek(body: Body) -> str | None:
    if thinks(body):
        if body.get("tool_choice") not in (None, "auto", "none"):
            return "Thinking mode does not support this tool_choice"
        if any("reasoning_content" not in turn for turn in turns(body)):
            return "The reasoning_content in the thinking mode must be passed back to the API."
    if (body.get("response_format") or {}).get("type") == "json_schema":
        return "This response_format type is unavailable now"
    return None


def check_kimi(body: Body) -> str | None:
    if body.get("temperature", 1) != 1 or "top_p" in body:
        return "invalid temperature: only 1 is allowed for this model"
    if not thinks(body):
        return None
    if body.get("tool_choice") not in (None, "auto", "none"):
        return "tool_choice 'specified' is incompatible with thinking enabled"
    for at, turn in enumerate(body["messages"]):
        if turn["role"] == "assistant" and not turn.get("reasoning_content"):
            return (
                "thinking is enabled but reasoning_content is missing in assistant tool call"
                f" message at index {at}"
            )
    return None


def check_router(body: Body) -> str | None:
    if any(not turn.get("reasoning_content") for turn in turns(body)):
        return "The `reasoning_content` in the thinking mode must be passed back to the API."
    return None


def check_mistral(body: Body) -> str | None:
    for turn in turns(body):
        for name in turn.keys() - {"role", "content", "tool_calls"}:
            return f'[{{"type":"extra_forbidden","loc":["assistant","{name}"]}}]'
    if "thinking" in body or "chat_template_kwargs" in body:
        return "extra_forbidden"
    return None


def check_groq(body: Body) -> str | None:
    for at, turn in enumerate(body["messages"]):
        for name in turn.keys() & {"reasoning_content", "reasoning", "reasoning_details"}:
            return f"'messages.{at}' : property '{name}' is unsupported"
    if "response_format" in body:
        if body.get("stream"):
            return "`response_format` does not support streaming"
        if "tools" in body:
            return "json mode cannot be combined with tool/function calling"
    return None


def check_minimax(body: Body) -> str | None:
    if body.get("thinking", {}).get("type") == "enabled" or not body.get("reasoning_split"):
        return "invalid params, 2013"
    return None


def accept(body: Body) -> str | None:
    return None


def answer(field: str | None, at: int, *, last: bool) -> Body:
    """Return the reply of a model that thinks, and calls a tool unless the reply is the last."""
    thought = f"thought {at}"
    message: Body = {"role": "assistant", "content": "Done." if last else None}
    if field == "content":
        parts = [{"type": "thinking", "thinking": [{"type": "text", "text": thought}]}]
        message["content"] = [*parts, *([{"type": "text", "text": "Done."}] if last else [])]
    elif field == "reasoning_details":
        message[field] = [{"type": "reasoning.text", "text": thought, "index": 0}]
    elif field is not None:
        message[field] = thought
    if not last:
        function = {"name": "lookup", "arguments": "{}"}
        message["tool_calls"] = [{"id": f"c{at}", "type": "function", "function": function}]
    finish = "stop" if last else "tool_calls"
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish}]}


class Loop:
    """A conversation with a server that checks each request; refusals are counted."""

    def __init__(self, vendor: str | None, model: str, check: Checker, **quirks: Any) -> None:
        base = "https://llm.example.com/v1"
        self.codec: Any = CODECS["openai"].connect(
            model, base, quirks or None, d.Capabilities(), vendor=vendor
        )
        self.check = check
        self.refused: list[str] = []
        self.codes: list[str] = []

    def send(self, request: d.Request) -> Body:
        """Send a request until the server accepts it; return the accepted body."""
        while True:
            encoded = self.codec.encode(request)
            body: Body = json.loads(encoded.http.body)
            refusal = self.check(body)
            if refusal is None:
                self.codes += [each.code for each in encoded.warnings]
                return body
            self.refused.append(refusal)
            error = json.dumps({"error": {"message": refusal}}).encode()
            learned = self.codec.learn(self.codec.error(400, {}, error), request)
            assert learned is not None, refusal
            self.codec = learned

    def read(self, request: d.Request, reply: Body) -> d.Assistant:
        decoded = decode(self.codec, request, [json.dumps(reply).encode()])
        return fold(decoded.events).message

    def run(self, messages: list[d.Message], field: str | None) -> Iterator[Body]:
        for at in range(4):
            request = d.Request(tuple(messages), tools=TOOLS)
            yield self.send(request)
            message = self.read(request, answer(field, at, last=at == 3))
            messages.append(message)
            messages += [
                d.ToolResult(block.id, "rain")
                for block in message.content
                if isinstance(block, d.ToolCall)
            ]


START: list[d.Message] = [d.User("Hello")]
# Turns of another model: a call without thinking, and thinking that only its issuer can read.
STATE = d.Continuity(signature="s", issuer=d.Issuer("anthropic", None, "claude-opus-4-7"))
FOREIGN: list[d.Message] = [
    d.User("Hello"),
    d.Assistant((d.Thinking("Hm.", STATE), d.ToolCall("toolu_1", "lookup", {}))),
    d.ToolResult("toolu_1", "rain"),
    d.Assistant((d.Text("It rains."),)),
    d.User("And now?"),
]

# The vendor, the model, the checker, the field of replies, and the field of requests.
VENDORS: list[tuple[str | None, str, Checker, str | None, str | None]] = [
    ("deepseek", "deepseek-v4-pro", check_deepseek, "reasoning_content", "reasoning_content"),
    ("deepseek", "deepseek-flash", check_deepseek, "reasoning_content", "reasoning_content"),
    (None, "deepseek-v4-flash", check_deepseek, "reasoning_content", "reasoning_content"),
    ("moonshot", "kimi-k2.6", check_kimi, "reasoning_content", "reasoning_content"),
    ("moonshot", "kimi-k2.7-code", check_kimi, "reasoning_content", "reasoning_content"),
    ("moonshot", "kimi-k3", check_kimi, "reasoning_content", "reasoning_content"),
    ("moonshot", "kimi-k4", check_kimi, "reasoning_content", "reasoning_content"),
    ("xiaomi", "mimo-v2.5-pro", check_deepseek, "reasoning_content", "reasoning_content"),
    ("openrouter", "deepseek/deepseek-v4-pro", check_router, "reasoning", "reasoning_content"),
    ("openrouter", "moonshotai/kimi-k2.6", check_router, "reasoning", "reasoning_content"),
    ("openrouter", "xiaomi/mimo-v2.5", check_router, "reasoning", "reasoning_content"),
    ("zai", "glm-5.3", accept, "reasoning_content", "reasoning_content"),
    ("zai", "glm-4.6", accept, "reasoning_content", "reasoning_content"),
    ("alibaba", "qwen3.6-plus", accept, "reasoning_content", "reasoning_content"),
    ("minimax", "MiniMax-M3", check_minimax, "reasoning_details", "reasoning_details"),
    ("minimax", "MiniMax-M2.7", check_minimax, "reasoning_details", "reasoning_details"),
    ("mistral", "mistral-small-latest", check_mistral, "content", "content"),
    ("mistral", "magistral-medium-latest", check_mistral, "content", "content"),
    ("mistral", "zai-glm-5-3", check_mistral, "content", "content"),
    ("mistral", "ministral-14b-latest", check_mistral, None, None),
    ("groq", "openai/gpt-oss-120b", check_groq, "reasoning", None),
    ("groq", "qwen/qwen3.8-27b", check_groq, "reasoning", None),
    ("cerebras", "qwen-3.8-27b", check_groq, "reasoning", None),
    ("vllm", "deepseek-ai/DeepSeek-V4", accept, "reasoning", "reasoning"),
    ("vllm", "Qwen/Qwen3.6-35B-A3B", accept, "reasoning", "reasoning"),
    ("sglang", "zai-org/GLM-5.3", accept, "reasoning_content", "reasoning_content"),
    ("volcengine", "doubao-seed-2-1-pro", accept, "reasoning_content", "reasoning_content"),
    ("tencent", "hy3-preview", accept, "reasoning_content", "reasoning_content"),
    ("baidu", "ernie-5.0-thinking-preview", accept, "reasoning_content", "reasoning_content"),
    ("siliconflow", "zai-org/GLM-4.7", accept, "reasoning_content", "reasoning_content"),
    ("llamacpp", "qwen3.6.gguf", accept, "reasoning_content", "reasoning_content"),
]  # fmt: skip


def thought_in(turn: Body, field: str) -> Any:
    if field == "content":
        return turn["content"][0]["thinking"][0]["text"]
    return turn[field][0]["text"] if field == "reasoning_details" else turn[field]


@pytest.mark.parametrize("start", [START, FOREIGN], ids=["alone", "after another model"])
@pytest.mark.parametrize(("vendor", "model", "check", "field", "back"), VENDORS)
def test_loops_with_thinking_are_accepted_at_once(
    vendor: str | None,
    model: str,
    check: Checker,
    field: str | None,
    back: str | None,
    start: list[d.Message],
) -> None:
    quirks = {"reasoning_details": True} if vendor == "openrouter" else {}
    loop = Loop(vendor, model, check, **quirks)
    bodies = [*loop.run([*start], field)]
    assert loop.refused == []
    own = turns(bodies[-1])[-3:]
    if back is None:
        assert all(turn.keys() <= {"role", "content", "tool_calls"} for turn in own)
        assert field is None or loop.codes.count("thinking_dropped") >= 3
    else:
        assert [thought_in(turn, back) for turn in own] == ["thought 0", "thought 1", "thought 2"]


def test_thinking_with_details_also_reaches_a_router_as_text() -> None:
    loop = Loop("openrouter", "deepseek/deepseek-v4-pro", check_router, reasoning_details=True)
    last = [*loop.run([*START], "reasoning_details")][-1]
    assert loop.refused == []
    assert [turn["reasoning_content"] for turn in turns(last)] == [
        "thought 0", "thought 1", "thought 2",
    ]  # fmt: skip
    assert [turn["reasoning_details"][0]["text"] for turn in turns(last)] == [
        "thought 0", "thought 1", "thought 2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("check", "quirks", "refusals"),
    [
        (check_deepseek, {}, 1),
        (check_kimi, {}, 1),
        (check_kimi, {"send_reasoning": "reasoning"}, 1),
        (check_groq, {"send_reasoning": "reasoning_content"}, 1),
        (check_mistral, {"send_reasoning": "reasoning_content"}, 1),
    ],
)
def test_demand_and_refusal_of_thinking_are_learned(
    check: Checker, quirks: Body, refusals: int
) -> None:
    loop = Loop(None, "unheard-of", check, reasons_unasked=True, **quirks)
    for _ in loop.run([*FOREIGN], "reasoning_content"):
        pass
    assert len(loop.refused) == refusals


def test_server_that_demands_and_refuses_thinking_is_not_asked_for_ever() -> None:
    answers = {
        True: "property 'reasoning_content' is unsupported",
        False: "reasoning_content is missing",
    }

    def contradict(body: Body) -> str | None:
        return answers[any("reasoning_content" in turn for turn in turns(body))]

    loop = Loop(None, "unheard-of", contradict, reasons_unasked=True)
    with pytest.raises(AssertionError, match="is missing"):
        loop.send(d.Request(tuple(FOREIGN)))
    assert len(loop.refused) == 3


@pytest.mark.parametrize(
    ("vendor", "model", "check", "choice", "thinking"),
    [
        ("deepseek", "deepseek-v4-pro", check_deepseek, "required", {"type": "disabled"}),
        ("moonshot", "kimi-k2.6", check_kimi, "required", {"type": "disabled"}),
        ("moonshot", "kimi-k3", check_kimi, "auto", None),
        ("moonshot", "kimi-k2.7-code", check_kimi, "auto", None),
    ],
)
def test_forced_tool_turns_thinking_off_or_is_relaxed(
    vendor: str, model: str, check: Checker, choice: str, thinking: Body | None
) -> None:
    loop = Loop(vendor, model, check)
    body = loop.send(d.Request(tuple(START), tools=TOOLS, tool_choice="required"))
    assert body["tool_choice"] == choice
    assert body.get("thinking") == thinking
    assert loop.refused == []
    assert loop.codes == ["tool_choice_relaxed" if choice == "auto" else "reasoning_off"]


@pytest.mark.parametrize("check", [check_deepseek, check_kimi])
def test_refusal_of_a_forced_tool_is_learned(check: Checker) -> None:
    loop = Loop(None, "unheard-of", check)
    body = loop.send(d.Request(tuple(START), tools=TOOLS, tool_choice="required"))
    assert body["tool_choice"] == "auto"
    assert len(loop.refused) == 1


@pytest.mark.parametrize("model", ["kimi-k2.6", "kimi-k3"])
def test_fixed_sampling_is_not_sent(model: str) -> None:
    loop = Loop("moonshot", model, check_kimi)
    config = d.RuntimeConfig(temperature=0.2, top_p=0.95)
    body = loop.send(d.Request(tuple(START), config=config))
    assert loop.refused == []
    assert loop.codes == ["setting_refused"]
    assert not body.keys() & {"temperature", "top_p"}


SCHEMA = {"title": "a", "type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize("vendor", ["groq", None])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("tools", [TOOLS, ()])
def test_structured_output_is_asked_for_in_the_prompt_where_the_field_is_refused(
    vendor: str | None, stream: bool, tools: tuple[d.Tool, ...]
) -> None:
    loop = Loop(vendor, "unheard-of", check_groq)
    request = d.Request(tuple(START), response_schema=SCHEMA, tools=tools, stream=stream)
    body = loop.send(request)
    assert ("response_format" in body) == (not stream and not tools)
    assert len(loop.refused) == (0 if vendor else int(stream or bool(tools)))


def test_structured_output_of_a_vendor_without_schemas_is_asked_for_in_the_prompt() -> None:
    loop = Loop("deepseek", "deepseek-v4-pro", check_deepseek)
    body = loop.send(d.Request(tuple(START), response_schema=SCHEMA))
    assert "response_format" not in body
    assert loop.refused == []


def check_alibaba(body: Body) -> str | None:
    if not body.get("stream") and body.get("enable_thinking") is not False:
        return "parameter.enable_thinking must be set to false for non-streaming calls"
    return None


@pytest.mark.parametrize(("model", "refusals"), [("qwen3-32b", 0), ("qwen3.6-plus", 1)])
def test_model_that_reasons_in_streams_only_does_not_reason_in_a_body(
    model: str, refusals: int
) -> None:
    loop = Loop("alibaba", model, check_alibaba)
    config = d.RuntimeConfig(reasoning="high")
    body = loop.send(d.Request(tuple(START), stream=True, config=config))
    assert body["enable_thinking"] is True
    assert loop.codes == ["reasoning_approximated"]
    loop.send(d.Request(tuple(START)))
    assert len(loop.refused) == refusals
    assert loop.codes[1:] == []
    loop.send(d.Request(tuple(START), config=config))
    assert len(loop.refused) == refusals
    assert loop.codes[1:] == ["reasoning_off"]


FIELDS = ("messages",)


@pytest.mark.parametrize(
    ("message", "known", "problems"),
    [
        ({}, (), ["The reasoning_content in the thinking mode must be passed back to the API."]),
        ({"reasoning_content": "Hm."}, FIELDS, []),
        ({"reasoning_content": "Hm.", "reasoning": "Hm."}, FIELDS,
         ["property 'messages.1.reasoning' is unsupported"]),
        ({"reasoning_content": "Hm.", "reasoning": "Hm."}, (), []),
    ],
)  # fmt: skip
def test_problems_of_a_chat_body_name_the_turn_and_the_field(
    message: Body, known: tuple[str, ...], problems: list[str]
) -> None:
    body = {"messages": [{"role": "user"}, {"role": "assistant", **message}]}
    quirks = Quirks(send_reasoning="reasoning_content", reasoning_required=True)
    server = SERVER_CODECS["openai"]
    assert [*server.list_problems(body, quirks, reasons=True, known=known)] == problems


def test_unknown_field_of_a_body_is_named() -> None:
    found = SERVER_CODECS["openai"].list_problems(
        {"messages": [], "user": "u"}, Quirks(), reasons=False, known=FIELDS
    )
    assert [*found] == ["property 'user' is unsupported"]


@pytest.mark.parametrize(
    ("roles", "problems"),
    [
        ("user assistant user system", []),
        ("user system assistant user", []),
        ("system user", ["messages.0: use the top-level 'system' parameter for the system prompt"]),
        ("user assistant system", ["messages.2: role 'system' must follow a 'user' message"]),
        ("user system user", ["messages.1: role 'system' must precede an 'assistant' message or"
                              " end the array"]),
    ],
)  # fmt: skip
def test_problems_of_a_messages_body_name_each_misplaced_system_message(
    roles: str, problems: list[str]
) -> None:
    body = {"messages": [{"role": role, "content": "Hi"} for role in roles.split()]}
    quirks: Any = type("Given", (), {"server_tools": {}})
    found = SERVER_CODECS["anthropic"].list_problems(body, quirks, reasons=False, known=())
    assert [*found] == problems


@pytest.mark.parametrize("wire", ["anthropic", "bedrock"])
def test_blank_text_next_to_others_is_a_problem(wire: str) -> None:
    kind = {"type": "text"} if wire == "anthropic" else {}
    texts = [{**kind, "text": text} for text in ("Hi", " \n", "")]
    quirks: Any = type("Given", (), {"server_tools": {}})

    def list_problems(*contents: Any) -> list[str]:
        body = {"messages": [{"role": "user", "content": content} for content in contents]}
        server = SERVER_CODECS[wire]
        return [*server.list_problems(body, quirks, reasons=False, known=())]

    assert list_problems(texts[:1], "Hi") == []
    assert [each[:11] for each in list_problems(texts[:1], texts[:2], texts[2:])] == [
        "messages.1:",
        "messages.2:",
    ]


def test_wires_without_rules_of_their_own_have_no_problems() -> None:
    server = SERVER_CODECS["cohere"]
    assert [*server.list_problems({}, None, reasons=True, known=())] == []


def test_thinking_in_parts_of_mistrals_clients_is_read() -> None:
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "Let me "}, {"text": "see."}]},
        {"type": "text", "text": "Yes."},
    ]
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": parts}]
    asked = SERVER_CODECS["openai"].decode({"model": "m", "messages": messages})
    turn = asked.request.messages[1]
    assert isinstance(turn, d.Assistant)
    assert [getattr(block, "text", None) for block in turn.content] == ["Let me see.", "Yes."]


def check_template(body: Body) -> str | None:
    """Return the error of gpt-oss's template, which llama.cpp renders (llama.cpp#17040)."""
    for turn in turns(body):
        if turn.get("reasoning_content") and turn.get("content") and turn.get("tool_calls"):
            return "Cannot pass both content and thinking in an assistant message with tool calls!"
    return None


@pytest.mark.parametrize(
    ("vendor", "model", "refusals"),
    [("llamacpp", "gpt-oss-20b", 0), ("llamacpp", "house-model", 1)],
)
def test_thinking_next_to_text_and_calls_is_left_out_where_the_template_takes_one(
    vendor: str, model: str, refusals: int
) -> None:
    loop = Loop(vendor, model, check_template, send_reasoning="reasoning_content")
    both = d.Assistant((d.Thinking("Hm."), d.Text("I look."), d.ToolCall("c1", "lookup", {})))
    quiet = d.Assistant((d.Thinking("So."), d.ToolCall("c2", "lookup", {})))
    results = [d.ToolResult("c1", "rain"), d.ToolResult("c2", "rain")]
    body = loop.send(d.Request((d.User("Hi"), both, results[0], quiet, results[1]), tools=TOOLS))
    assert [turn.get("reasoning_content") for turn in turns(body)] == [None, "So."]
    assert [turn["content"] for turn in turns(body)] == ["I look.", None]
    assert len(loop.refused) == refusals
    assert loop.codes == ["thinking_dropped"]


FORMATS = Quirks(structured="prompt", structured_streamed="prompt", structured_with_tools="prompt")
SCHEMA = {"messages": [], "response_format": {"type": "json_schema"}}


@pytest.mark.parametrize(
    ("body", "problems"),
    [
        ({"messages": []}, 0),
        (SCHEMA, 1),
        ({**SCHEMA, "stream": True}, 2),
        ({**SCHEMA, "stream": True, "tools": [{}]}, 3),
        ({**SCHEMA, "response_format": {"type": "json_object"}, "tools": [{}]}, 1),
    ],
)
def test_server_refuses_formats_that_it_lacks(body: Body, problems: int) -> None:
    server = SERVER_CODECS["openai"]
    assert len([*server.list_problems(body, FORMATS, reasons=False, known=())]) == problems
    assert [*server.list_problems(body, Quirks(), reasons=False, known=())] == []


def test_converse_has_one_field_of_the_binding() -> None:
    server = SERVER_CODECS["bedrock"]
    binding = {"prefix_mismatch_behavior": "drop_block", server.binding_field: "drop_block"}
    body = {"additionalModelRequestFields": {"thinking": {"block_binding": binding}}}
    [problem] = server.list_problems(body, None, reasons=True, known=())
    assert "prefix_mismatch_behavior: Extra inputs are not permitted" in problem
    assert [*server.list_problems({}, None, reasons=True, known=())] == []


def test_reply_names_the_thoughts_that_the_server_dropped() -> None:
    thoughts = [{"type": "text"}, {"type": "thinking"}, {"type": "thinking"}]
    body = {"messages": [{"content": "Hi"}, {"content": thoughts}]}
    server = SERVER_CODECS["anthropic"]
    [dropped] = server.show_dropped(body, [1])["input_transformations"]
    assert dropped["path"] == "messages.1.content.2"
    assert server.show_dropped(body, []) == {}
    assert SERVER_CODECS["gemini"].show_dropped(body, [1]) == {}


def test_vendors_that_reject_unknown_fields_list_the_known_ones() -> None:
    assert "messages" in list_known_fields("groq")
    assert list_known_fields("openai") == set()
    assert list_known_fields(None) == set()


def test_converse_names_the_thoughts_that_the_server_dropped_if_it_is_asked() -> None:
    signed = {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "s"}}}
    hidden = {"reasoningContent": {"redactedContent": "eA=="}}
    body = {"messages": [{"content": [{"text": "Hi"}]}, {"content": [hidden, signed, signed]}]}
    asked = {**body, "additionalModelResponseFieldPaths": ["/input_transformations"]}
    server = SERVER_CODECS["bedrock"]
    assert server.show_dropped(body, [1]) == server.show_dropped(asked, []) == {}
    [dropped] = server.show_dropped(asked, [1])["additionalModelResponseFields"]["input_transformations"]  # fmt: skip
    assert dropped["path"] == "messages.1.content.2"


@pytest.mark.parametrize("stream", [False, True])
def test_reply_of_converse_keeps_the_fields_of_the_model(stream: bool) -> None:
    """A client of the gateway gets what it asked for, and removed thinking is reported."""
    dropped = {"type": "thinking_dropped", "path": "messages.1.content.0", "reason": "r"}
    own = {"additionalModelResponseFields": {"input_transformations": [dropped]}}
    reply = {
        "output": {"message": {"role": "assistant", "content": [{"text": "Hi"}]}},
        "stopReason": "end_turn", "usage": {"inputTokens": 1, "outputTokens": 1}, **own,
    }  # fmt: skip
    codec = CODECS["bedrock"].connect("m", "http://a.test", None, d.Capabilities())
    request = d.Request([d.User("Hi")], stream=stream)
    events = decode(codec, replace(request, stream=False), [json.dumps(reply).encode()]).events
    complete = events[-1]
    assert isinstance(complete, d.MessageComplete)
    assert [each.code for each in complete.warnings] == ["thinking_unbound"]
    encoder = SERVER_CODECS["bedrock"].encoder(Asked(request=request))
    written = b"".join([*[encoder.feed(each) for each in events], encoder.end()])
    assert b"messages.1.content.0" in written
    read_again = decode(codec, request, [written]).events[-1]
    assert getattr(read_again, "native", None) == {"bedrock": own}
