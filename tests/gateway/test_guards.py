"""Test that a gateway releases nothing that a judge blocks, to any client from any model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from dragoman import Guard
from dragoman.calls import GuardJudged
from dragoman.gateway import create_app
from dragoman.gateway.keys import Key, KeyRing, hash_key
from dragoman.gateway.store import ResponseStore
from dragoman.log import MemoryLog
from dragoman.middleware.guard import Rules
from dragoman.provider import connect
from dragoman.registry import Registry
from dragoman.sim import Answer, Call, ScriptedProvider, ScriptRule, SimServer
from tests.server import serve
from tests.waiting import poll

from .serving import serving
from .test_groups import answer
from .upstream import EXHAUSTIVE, WIRES

SECRET = "swordfish"
RULES = [{"code": "secret", "pattern": SECRET}]
PLACES: dict[str, Answer] = {
    "text": Answer(f"The word is {SECRET}, as you know.", piece=4),
    "thinking": Answer("Yes.", thinking=f"They want {SECRET}.", piece=4),
    "call": Answer(tool_calls=[Call("look", {"place": SECRET})], piece=4),
}
TOOL = {
    "name": "look",
    "description": "Look.",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
}


def ask(client: str, model: str, *, stream: bool) -> tuple[str, dict[str, Any]]:
    """Return the path and the body of a request of a client, with a tool."""
    said = [{"role": "user", "content": "Hi"}]
    function = {"type": "function", "function": TOOL}
    if client == "anthropic":
        tool = {"name": "look", "input_schema": TOOL["parameters"]}
        return "/v1/messages", {
            "model": model, "max_tokens": 999, "messages": said, "tools": [tool], "stream": stream,
        }  # fmt: skip
    if client == "responses":
        return "/v1/responses", {
            "model": model, "input": said, "tools": [{"type": "function", **TOOL}],
            "stream": stream,
        }  # fmt: skip
    if client == "gemini":
        method = "streamGenerateContent?alt=sse" if stream else "generateContent"
        return f"/v1beta/models/{model}:{method}", {
            "contents": [{"role": "user", "parts": [{"text": "Hi"}]}],
            "tools": [{"functionDeclarations": [TOOL]}],
        }
    if client == "bedrock":
        spec = {"name": "look", "inputSchema": {"json": TOOL["parameters"]}}
        return f"/model/{model}/converse{'-stream' if stream else ''}", {
            "messages": [{"role": "user", "content": [{"text": "Hi"}]}],
            "toolConfig": {"tools": [{"toolSpec": spec}]},
        }
    paths = {"openai": "/v1/chat/completions", "ollama": "/api/chat", "cohere": "/v2/chat"}
    body = {"model": model, "messages": said, "tools": [function], "stream": stream}
    return paths[client], body


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("upstream", "place"),
    [
        (wire, place)
        for at, wire in enumerate(WIRES)
        for number, place in enumerate(PLACES)
        if EXHAUSTIVE or at % len(PLACES) == number
    ],
)
async def test_nothing_blocked_reaches_a_client(upstream: str, place: str) -> None:
    log = MemoryLog()
    with SimServer(ScriptedProvider(ScriptRule(PLACES[place])), models=("sim",)) as server:
        model = connect(
            "sim", wire=upstream, base_url=server.base_urls[upstream], api_key="k" * 12
        )
        models = {
            "whole": Guard(model, Rules(RULES)),
            "streamed": Guard(model, Rules(RULES), on=("text", "intent")),
            "polite": Guard(model, Rules(RULES), refusal="I cannot help with that."),
        }
        async with (
            serving(create_app(models, log=log)) as url,
            aiohttp.ClientSession() as session,
        ):
            for client in WIRES:
                for name in models:
                    for stream in (False, True):
                        path, body = ask(client, name, stream=stream)
                        async with session.post(url + path, json=body) as reply:
                            received = await reply.read()
                        case = f"{client} of {upstream}, {name}, stream={stream}: {received!r}"
                        assert SECRET.encode() not in received, case
                        assert SECRET not in str(reply.headers), case
                        if name == "polite":
                            assert reply.status == 200, case
                            text = received.replace(b"\\", b"")
                            assert b"help" in text, case
                        elif name == "whole" or not stream:
                            assert reply.status == 400, case
                            assert b"the guard withheld" in received, case
                        else:
                            assert b"the guard withheld" in received, case
    assert len(server.requests) == len(WIRES) * len(models) * 2
    records = [record async for record in read_all(log)]
    assert SECRET not in msgspec.json.encode(records).decode()


async def read_all(log: MemoryLog) -> Any:
    for session in log.sessions():
        for record in log.read(session.session):
            yield record.payload


async def test_what_is_blocked_is_not_in_stored_responses(tmp_path: Path) -> None:
    store = ResponseStore(tmp_path / "store.db")
    with SimServer(ScriptedProvider(ScriptRule(PLACES["text"])), models=("sim",)) as server:
        model = connect(
            "sim", wire="responses", base_url=server.base_urls["responses"], api_key="k" * 12
        )
        guarded = Guard(model, Rules(RULES), on=("text", "intent"))
        async with (
            serving(create_app({"m": guarded}, store=store)) as url,
            aiohttp.ClientSession(url) as http,
        ):
            for more in ({"stream": True}, {"background": True}, {}):
                body = {"model": "m", "input": "Hi", "store": True, **more}
                async with http.post("/v1/responses", json=body) as reply:
                    found = await reply.text()
                if "background" in more:
                    path = f"/v1/responses/{json.loads(found)['id']}"

                    async def ask(path: str = path) -> Any:
                        async with http.get(path) as kept:
                            return await kept.json()

                    found = str(
                        await poll(ask, lambda each: each["status"] == "failed", "the failure")
                    )
                assert SECRET not in found
    store.close()
    assert SECRET.encode() not in (tmp_path / "store.db").read_bytes()


# --- configuration ------------------------------------------------------------------------------

FILE = """
adapters:
  up: {{type: openai-compatible, base_url: {url}/v1}}
models:
  fast: {{adapter: up, wire_name: m}}
  slow: {{adapter: up, wire_name: n}}
groups:
  both: {{candidates: [slow, fast]}}
guards:
  everywhere:
    on: [request]
    rules:
      - {{code: secret, pattern: swordfish}}
  of-fast:
    models: ["up:m"]
    on: [request]
    rules:
      - {{code: river, pattern: Rhine}}
  of-support:
    teams: [support]
    on: [reply]
    rules:
      - {{code: greeting, pattern: Hi}}
"""


async def test_guards_of_the_file_judge_models_and_teams(tmp_path: Path) -> None:
    log = MemoryLog()
    keys = KeyRing(
        [
            Key("ann", hash_key("key-of-ann-0001"), team="support"),
            Key("bob", hash_key("key-of-bob-0001")),
        ]
    )
    async with serve(answer) as upstream:
        path = tmp_path / "models.yaml"
        path.write_text(FILE.format(url=upstream.base_url.removesuffix("/v1")))
        app = create_app(
            Registry.load(path),
            keys=keys,
            log=log,
            admin=hash_key("admin-key-0001"),
            ui="dragoman.gateway.web",
        )
        async with serving(app) as url, aiohttp.ClientSession(url) as http:

            async def post(who: str, model: str, words: str) -> tuple[int, str]:
                body = {"model": model, "messages": [{"role": "user", "content": words}]}
                headers = {"authorization": f"Bearer key-of-{who}-0001"}
                async with http.post("/v1/chat/completions", json=body, headers=headers) as reply:
                    text = await reply.text()
                    found = json.loads(text)
                    return reply.status, found.get("error", {}).get("code") or ""

            assert await post("bob", "slow", "Hello") == (200, "")
            assert (await post("bob", "slow", "swordfish"))[0] == 400
            assert (await post("bob", "slow", "the Rhine"))[0] == 200
            for name in ("fast", "both"):
                assert (await post("bob", name, "the Rhine"))[0] == 400, name
            assert (await post("ann", "slow", "Hello"))[0] == 400
            async with http.get(
                "/metrics", headers={"authorization": "Bearer admin-key-0001"}
            ) as reply:
                lines = (await reply.text()).splitlines()
            async with http.get(
                "/ui/api/overview", headers={"authorization": "Bearer admin-key-0001"}
            ) as reply:
                shown = (await reply.json())["verdicts"]
    assert {
        "judge": "rules",
        "model": "slow",
        "stage": "reply",
        "action": "block",
        "count": 1,
    } in shown
    counted = [line for line in lines if line.startswith("dragoman_guard_verdicts_total")]
    assert any('action="block"' in line and 'judge="rules"' in line for line in counted)
    judged = [each async for each in read_all(log) if isinstance(each, GuardJudged)]
    assert {each.action for each in judged} == {"allow", "block"}
    assert all(each.reason is None for each in judged)


@pytest.mark.parametrize(
    ("guard", "problem"),
    [
        ("{}", "guards.x: needs a judge: one of rules, http, moderations, presidio, python"),
        ("{rules: [{pattern: a}]}", "guards.x.rules[0].code: is required"),
        ("{rules: [{code: a, pattern: '('}]}", "rules[0].pattern is not a valid JSON Schema"),
        ("{rules: [{code: a, pattern: b}], on: [answer]}", "on lists some of request, text"),
        ("{rules: [{code: a, pattern: b}], models: fast}", "guards.x.models: must be"),
        ("{rules: [{code: a, pattern: b}], modles: [fast]}", "guards.x.modles: unknown key"),
        ("{http: {url: 'http://h', api_key: k}}", "name the variable with the key: api_key_env"),
        ("{http: {url: 'http://h', api_key_env: NONE_SUCH}}", "NONE_SUCH is not set"),
        ("{presidio: {url: 'http://h', treshold: 1}}", "treshold"),
        ("{python: nowhere}", "must be MODULE:NAME, such as company.judges:check"),
        ("{python: 'nowhere_at_all:check'}", "No module named 'nowhere_at_all'"),
        ("{python: 'json:nothing'}", "no attribute 'nothing'"),
    ],
)
def test_mistakes_in_guards_are_reported_with_their_line(
    tmp_path: Path, guard: str, problem: str
) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(f"models: {{}}\nguards:\n  x: {guard}\n")
    with pytest.raises(ValueError, match=r"models.yaml:3: ") as caught:
        Registry.load(path)
    assert problem in str(caught.value)


def test_python_judge_of_the_file_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "company_judges.py").write_text("def check(subject):\n    return 'flag'\n")
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "models.yaml"
    path.write_text("models: {}\nguards:\n  x: {python: 'company_judges:check', deadline: 5}\n")
    provider = Registry.load(path).open("openai:gpt-6-sol", planning=True)
    assert isinstance(provider, Guard)
    assert provider.settings()["judge"] == ["check"]
    assert provider.settings()["deadline"] == 5
