"""Models of other vendors behind Anthropic's API get their thinking back as they demand it.

The checkers are the rules of the vendors, as their error replies state them: leookun/cursor-byok#276
(DeepSeek, 2026-08), NousResearch/hermes-agent#14018 and open-octo/octo-agent#74 (Kimi, 2026-04 and
2026-05); seen 2026-11-19.
"""

import json
from typing import Any

import pytest

import dragoman as d
from dragoman.events import fold
from dragoman.wire import CODECS
from tests.wire.cases import decode

TOOLS = (d.Tool("lookup", "Looks.", parameters={"type": "object", "properties": {}}),)
# Turns of another model: a call without thinking, and thinking that only its issuer can read.
STATE = d.Continuity(signature="s", issuer=d.Issuer("anthropic", None, "claude-opus-4-7"))
FOREIGN: list[d.Message] = [
    d.User("Hello"),
    d.Assistant((d.Thinking("Hm.", STATE), d.ToolCall("toolu_1", "lookup", {}))),
    d.ToolResult("toolu_1", "rain"),
    d.Assistant((d.Text("It rains."),)),
    d.User("And now?"),
]
DEMANDED = {
    "deepseek": "The `content[].thinking` in the thinking mode must be passed back to the API.",
    "moonshot": "thinking is enabled but reasoning_content is missing in assistant tool call message",
}
Body = dict[str, Any]


def find_refusal(body: Body, demanded: str) -> str | None:
    """Return the error of a server that demands thinking in each turn while the model reasons."""
    turns = [each["content"] for each in body["messages"] if each["role"] == "assistant"]
    if body.get("thinking") == {"type": "disabled"}:
        return None
    for turn in turns:
        if isinstance(turn, str) or turn[0]["type"] != "thinking" or not turn[0]["thinking"]:
            return demanded
    return None


def answer(at: int, signature: str | None) -> bytes:
    """Return a reply with thinking and a call."""
    thought = {"type": "thinking", "thinking": f"thought {at}"}
    signed = {} if signature is None else {"signature": signature}
    call = {"type": "tool_use", "id": f"c{at}", "name": "lookup", "input": {}}
    body = {
        "id": "m1", "type": "message", "role": "assistant", "stop_reason": "tool_use",
        "content": [{**thought, **signed}, call], "usage": {"input_tokens": 1, "output_tokens": 1},
    }  # fmt: skip
    return json.dumps(body).encode()


def run_loop(codec: Any, demanded: str, signature: str | None) -> tuple[Body, int]:
    """Run three turns with calls; return the last request and the number of refusals."""
    messages = [*FOREIGN]
    refusals = 0
    body: Body = {}
    for at in range(4):
        request = d.Request(tuple(messages), tools=TOOLS, config=d.RuntimeConfig(max_tokens=4096))
        body = json.loads(codec.encode(request).http.body)
        while (refusal := find_refusal(body, demanded)) is not None:
            refusals += 1
            error = {
                "type": "error",
                "error": {"type": "invalid_request_error", "message": refusal},
            }
            learned = codec.learn(codec.error(400, {}, json.dumps(error).encode()), request)
            assert learned is not None, refusal
            codec = learned
            body = json.loads(codec.encode(request).http.body)
        reply = fold(decode(codec, request, [answer(at, signature)]).events).message
        messages += [reply, d.ToolResult(f"c{at}", "rain")]
    return body, refusals


@pytest.mark.parametrize("signature", [None, "", "signed by the server"])
@pytest.mark.parametrize(
    ("vendor", "model", "refusals"),
    [
        ("deepseek", "deepseek-flash", 0),
        ("moonshot", "kimi-k2.6", 0),
        ("moonshot", "kimi-k3", 0),
        (None, "house-model", 1),
    ],
)
def test_every_turn_of_a_loop_has_the_thinking_that_the_server_demands(
    vendor: str | None, model: str, refusals: int, signature: str | None
) -> None:
    base = "https://llm.example.com/anthropic"
    codec = CODECS["anthropic"].connect(model, base, None, d.Capabilities(), vendor=vendor)
    body, refused = run_loop(codec, DEMANDED[vendor or "moonshot"], signature)
    assert refused == refusals
    own = [each["content"][0] for each in body["messages"] if each["role"] == "assistant"][-3:]
    assert [block["thinking"] for block in own] == ["thought 0", "thought 1", "thought 2"]
    assert {block["signature"] for block in own} == {signature or ""}


def test_no_thought_is_added_while_the_model_does_not_reason() -> None:
    codec = d.connect("deepseek:deepseek-flash", api_key="k", wire="anthropic")
    config = d.RuntimeConfig(max_tokens=99, reasoning="off")
    empty = d.Assistant((d.Thinking(""), d.Text("It pours.")))
    request = d.Request((*FOREIGN, empty, d.User("And?")), config=config)
    body = json.loads(codec.preview(request).http.body)
    assert body["thinking"] == {"type": "disabled"}
    kinds = [
        block["type"]
        for each in body["messages"]
        if each["role"] == "assistant"
        for block in each["content"]
    ]
    assert kinds == ["tool_use", "text", "text"]


def test_claude_gets_no_thinking_without_a_signature() -> None:
    model = d.connect("anthropic:claude-opus-4-8", api_key="k")
    turn = d.Assistant((d.Thinking("Hm."), d.Text("It rains.")))
    request = d.Request([d.User("Hi"), turn, d.User("And?")])
    preview = model.preview(request)
    assert b"Hm." not in preview.http.body
    assert [each.code for each in preview.warnings] == ["thinking_dropped"]


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("deepseek:deepseek-flash", "https://api.deepseek.com/anthropic/v1/messages"),
        ("kimi:kimi-k3", "https://api.moonshot.ai/anthropic/v1/messages"),
        ("minimax:MiniMax-M3", "https://api.minimax.io/anthropic/v1/messages"),
        ("xiaomi:mimo-v2.5-pro", "https://api.xiaomimimo.com/anthropic/v1/messages"),
        ("zai:glm-5.3", "https://api.z.ai/api/anthropic/v1/messages"),
        ("alibaba:qwen-plus", "https://dashscope-intl.aliyuncs.com/apps/anthropic/v1/messages"),
        ("vercel:anthropic/claude-opus-4.6", "https://ai-gateway.vercel.sh/v1/messages"),
        ("openrouter:z-ai/glm-4.7", "https://openrouter.ai/api/v1/messages"),
    ],
)
def test_anthropic_address_of_a_vendor_is_a_wire_of_its_name(name: str, address: str) -> None:
    model = d.connect(name, api_key="k", wire="anthropic")
    config = d.RuntimeConfig(max_tokens=99)
    sent = model.preview(d.Request([d.User("Hi")], config=config)).http
    assert sent.url == address
