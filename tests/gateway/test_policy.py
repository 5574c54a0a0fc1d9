"""Test that every field of every client wire is mapped, reported or rejected for models of every
wire.
"""

import ast
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import dragoman as d
import dragoman.wire as wire
import dragoman.wire.policy as policy
from dragoman.errors import ContextOverflowError
from dragoman.gateway.app import create_app
from dragoman.gateway.keys import Key, KeyRing, new_key
from dragoman.messages import ServerTool
from dragoman.middleware.translation import describe_upstream
from dragoman.sim import ScriptedProvider
from dragoman.wire import SERVER_CODECS
from dragoman.wire.policy import NEVER, rename_settings
from dragoman.wire.policy.hosted import Hosted, fit_hosted, read_hosted
from dragoman.wire.policy.translate import describe_wire
from tests.listed import Listed
from tests.rows import read_table

from .serving import serving
from .translations import ROWS, SEARCHING, TOOLS, Rejected, Row, expand, limited
from .upstream import BODIES, PATHS, TABLES, WIRES, Bench, bench, models_for


def holds(sent: Any, wanted: Any) -> bool:
    """Return whether the body that the model's server received contains all expected values; a
    string may also contain more text than expected.
    """
    if isinstance(wanted, dict):
        return isinstance(sent, dict) and all(
            holds(sent.get(name), value) for name, value in wanted.items()
        )
    if isinstance(wanted, str) and isinstance(sent, str):
        return wanted in sent
    return bool(sent == wanted)


async def find_fault(gateway: Bench, row: Row, model: str) -> Any:
    """Send the request of a row to a model; return what differs from the row, or None."""
    client, fields, outcome = row
    if not isinstance(outcome, dict):
        outcome = {model: expand(fields) if model == client else outcome}
    status, headers, said = await gateway.ask(client, model, limited(client, fields))
    shown = headers.get("x-dragoman-warnings", "")
    match outcome[model]:
        case Rejected(text):
            is_named = text in str(said) and f"'{model}'" in str(said)
            is_right = (status, gateway.seen, is_named) == (400, [], True)
        case str(text):
            is_right = status == 200 and text in shown
        case wanted:
            is_right = status == 200 and holds(gateway.seen[0], expand(wanted))
            is_right &= row[2] not in shown if isinstance(row[2], str) else True
    return None if is_right else (model, row, status, shown, said, gateway.seen)


@pytest.mark.exhaustive
async def test_request_is_translated_reported_or_rejected_as_the_table_says() -> None:
    # The server of the Responses wire takes all kinds of tools, as OpenAI does.
    async with bench(quirks={"responses": {"tool_kinds": "all"}}) as gateway:
        asked = [
            (row, model)
            for at, row in enumerate(ROWS)
            for model in (row[2] if isinstance(row[2], dict) else models_for(row[0], at))
        ]
        faults = [await find_fault(gateway, row, model) for row, model in asked]
    assert [fault for fault in faults if fault is not None] == []


def find_codes() -> set[str]:
    """Return the warning codes in the source code of the policy and of the readers."""
    found: set[str] = set()
    readers = [Path(str(wire.__file__)).parent / name / "server_request.py" for name in WIRES]
    for file in [*Path(str(policy.__file__)).parent.glob("*.py"), *readers]:
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            at = {"leave": 2, "_warn": 0}.get(node.func.attr, len(node.args))
            code = node.args[at] if at < len(node.args) else None
            if isinstance(code, ast.Constant):
                found.add(str(code.value))
    return found


def test_every_warning_code_occurs_in_the_table() -> None:
    outcomes = [each for *_, each in ROWS]
    outcomes += [inner for each in outcomes if isinstance(each, dict) for inner in each.values()]
    shown = " ".join([each for each in outcomes if isinstance(each, str)]).split()
    codes = find_codes()
    assert len(codes) > 15
    elsewhere = {"content_dropped", "tool_dropped", "beta_dropped"}
    assert codes - set(shown) == elsewhere


# Values that request what a vendor does without the field.
DEFAULTS: list[tuple[str, dict[str, Any]]] = [
    (
        "openai",
        {
            "n": 1,
            "temperature": 1,
            "top_p": 1,
            "frequency_penalty": 0,
            "presence_penalty": 0,
            "logprobs": False,
            "logit_bias": {},
            "modalities": ["text"],
            "store": False,
            "service_tier": "auto",
            "verbosity": "medium",
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": "f",
                        "description": "d",
                        "parameters": {"type": "object", "properties": {}},
                    },
                }
            ],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "response_format.type": "text",
            "stop": None,
            "seed": None,
            "metadata": None,
            "user": None,
            "stream": False,
            "stream_options": None,
        },
    ),
    (
        "responses",
        {
            "store": True,
            "background": False,
            "truncation": "disabled",
            "service_tier": "auto",
            "parallel_tool_calls": True,
            "tools": [
                {
                    "type": "function",
                    "name": "f",
                    "description": "d",
                    "parameters": {"type": "object", "properties": {}},
                }
            ],
            "tool_choice": "auto",
            "text.format.type": "text",
            "text.verbosity": "medium",
            "previous_response_id": None,
            "conversation": None,
            "prompt": None,
            "max_tool_calls": None,
            "top_logprobs": 0,
            "metadata": {},
        },
    ),
    ("responses", {"include": ["reasoning.encrypted_content"], "store": False}),
    (
        "anthropic",
        {
            "speed": "standard",
            "service_tier": "auto",
            "tools": [
                {
                    "name": "f",
                    "description": "d",
                    "input_schema": {"type": "object", "properties": {}},
                }
            ],
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": False},
            "stop_sequences": [],
            "metadata": {},
        },
    ),
    (
        "gemini",
        {
            "generationConfig.candidateCount": 1,
            "generationConfig.responseModalities": ["TEXT"],
            "generationConfig.responseMimeType": "text/plain",
            "generationConfig.responseLogprobs": False,
            "safetySettings": [],
            "tools": [],
            "labels": {},
        },
    ),
    ("ollama", {"options": {}, "format": "", "tools": []}),
]


async def test_field_with_its_default_value_is_neither_rejected_nor_reported() -> None:
    async with bench() as gateway:
        for client, fields in DEFAULTS:
            for model in WIRES:
                status, headers, said = await gateway.ask(client, model, limited(client, fields))
                shown = headers.get("x-dragoman-warnings")
                assert status == 200, (client, model, said)
                assert shown is None, (client, model, said)


# Values for fields that do not accept text.
VALUES: dict[str, Any] = dict(read_table("field_values"))
# Fields without which another one has no effect.
BESIDE: dict[tuple[str, str], dict[str, Any]] = {
    ("openai", "parallel_tool_calls"): {"tools": [TOOLS["openai"]]},
    ("responses", "parallel_tool_calls"): {"tools": [TOOLS["responses"]]},
    ("gemini", "generationConfig.responseSchema"): {
        "generationConfig.responseMimeType": "application/json"
    },
}
# This field is not reported, because both values of ``store`` have the same effect on a gateway
# without a store.
UNREPORTED = {("responses", "store")}
# This field is refused only where the model's server cannot search.
SEARCH = "web_search_options"
CASES = [
    (client, field, rule)
    for client, rules in TABLES.items()
    for field, rule in rules.items()
    if rule.effect != "read" and (client, field) not in UNREPORTED
]


def give(field: str) -> dict[str, Any]:
    """Return a request field with a value that is not the default."""
    return {field: VALUES.get(field, "some text")}


@pytest.mark.exhaustive
async def test_every_request_field_is_sent_reported_or_rejected() -> None:
    async with bench() as gateway:
        for at, (client, field, rule) in enumerate(CASES):
            beside = BESIDE.get((client, field), {})
            concept = rule.concept or field.rpartition(".")[2]
            for model in models_for(client, at):
                await gateway.ask(client, model, limited(client, beside))
                plain = list(gateway.seen)
                fields = limited(client, {**beside, **give(field)})
                status, headers, said = await gateway.ask(client, model, fields)
                warned = headers.get("x-dragoman-warnings", "")
                where = (client, field, model, rule, status, warned, said)
                is_handled = gateway.seen != plain or field in warned or concept in warned
                is_handled |= "reasoning_approximated" in warned
                needs_beta = bool(rule.betas) and not rule.released
                if rule.always or model != client or needs_beta:
                    if rule.effect == "refused" or (field == SEARCH and status == 400):
                        assert status == 400, where
                        assert gateway.seen == [], where
                        assert field in str(said), where
                        continue
                    is_handled &= rule.effect != "hint" or field in warned
                assert status == 200, where
                assert is_handled is True, where


@pytest.mark.parametrize("client", TABLES)
async def test_a_stream_reports_every_dropped_field_in_its_header(client: str) -> None:
    dropped = [field for wire, field, rule in CASES if wire == client and rule.effect == "hint"]
    fields = {name: value for field in dropped for name, value in give(field).items()}
    body = {**BODIES[client], **limited(client, fields), "an_unknown_field": "x"}
    if client not in ("gemini", "bedrock"):
        body["model"] = "m"
    path = PATHS[client].format(model="m")
    shown = []
    async with (
        serving(create_app({"m": ScriptedProvider("Hello")})) as url,
        aiohttp.ClientSession(url) as http,
    ):
        for is_stream in (False, True):
            if client not in ("gemini", "bedrock"):
                body["stream"] = is_stream
            elif is_stream:
                path = path.replace(":generate", ":streamGenerate")
                path = path.replace("/converse", "/converse-stream")
            async with http.post(path, json=body) as reply:
                assert reply.status == 200, await reply.text()
                shown.append(reply.headers["x-dragoman-warnings"])
    assert shown[0] == shown[1]
    assert [field for field in dropped if f" {field};" not in f"{shown[0]};"] == []
    assert "field_dropped " in shown[0]


async def test_warnings_that_do_not_fit_the_header_are_counted() -> None:
    fields = {f"unknown_{at:03}": at for at in range(200)}
    async with bench() as gateway:
        _, headers, _ = await gateway.ask("openai", "ollama", fields)
    *shown, rest = headers["x-dragoman-warnings"].split("; ")
    assert shown == [f"field_dropped unknown_{at:03}" for at in range(len(shown))]
    assert rest == f"{200 - len(shown)} more"
    assert len(shown) > 100


async def test_hosted_tool_that_the_client_names_twice_is_sent_once() -> None:
    asked = [{"type": "web_search"}, {"type": "web_search_preview"}]
    async with bench() as gateway:
        await gateway.ask("responses", "anthropic", {"tools": asked})
        assert gateway.seen[0]["tools"] == [SEARCHING]


def test_hosted_tool_with_options_is_not_mapped_for_a_group_of_two_wires() -> None:
    asked = Hosted("web_search", {"allowed_domains": ["a"]})
    plain = Hosted("web_search", {})
    wires = [describe_wire(each).hosted for each in ("anthropic", "responses")]
    assert fit_hosted(asked, wires) is None
    assert fit_hosted(plain, wires) == (ServerTool("web_search"), ())
    assert fit_hosted(asked, [describe_wire("").hosted]) is None
    assert read_hosted(describe_wire("gemini").hosted, "googleSearch", 5) is None


async def test_on_loss_reject_turns_every_lost_field_into_an_error() -> None:
    async with bench(on_loss="reject") as gateway:
        for client, model, fields in (
            ("openai", "ollama", {"user": "u"}),
            ("anthropic", "openai", {"top_k": 3}),
            ("gemini", "ollama", {"labels": {"a": "b"}}),
        ):
            status, _, said = await gateway.ask(client, model, fields)
            assert status == 400, said
            assert "on_loss" in str(said), said
        status, _, _ = await gateway.ask("openai", "openai", {"user": "u", "made_up": 1})
        assert status == 200


async def test_lost_fields_are_rejected_if_the_key_is_configured_so() -> None:
    secret, digest = new_key()
    lenient, other = new_key()
    ring = KeyRing([Key("strict", digest, on_loss="reject"), Key("lenient", other)])
    forced = {"tools": [TOOLS["openai"]], "tool_choice": "required"}
    async with bench(keys=ring) as gateway:
        for key, fields, wanted in (
            (secret, {"user": "u"}, 400),
            (lenient, {"user": "u"}, 200),
            (secret, forced, 400),
        ):
            body = {"model": "ollama", **BODIES["openai"], **fields}
            bearer = f"Bearer {key}"
            status, _, said = await gateway.post(PATHS["openai"], body, authorization=bearer)
            assert status == wanted, said
        assert "tool_choice" in str(said)


async def test_logprobs_are_left_out_and_reported_if_the_key_is_configured_so() -> None:
    secret, digest = new_key()
    ring = KeyRing([Key("guidance", digest, on_loss="drop")])
    async with bench(keys=ring) as gateway:
        body = {"model": "anthropic", **BODIES["openai"], "max_tokens": 9}
        bearer = f"Bearer {secret}"
        status, headers, _ = await gateway.post(
            PATHS["openai"], {**body, "logprobs": True}, authorization=bearer
        )
        assert status == 200
        assert headers["x-dragoman-warnings"] == "logprobs_dropped logprobs"
        status, _, said = await gateway.post(
            PATHS["openai"], {**body, "modalities": ["audio"]}, authorization=bearer
        )
    assert status == 400
    assert "modalities" in str(said)


async def test_request_cannot_choose_the_upstream_address_on_any_wire() -> None:
    async with bench() as gateway:
        for client in WIRES:
            for name in NEVER if client == "openai" else NEVER[:1]:
                status, _, said = await gateway.ask(client, client, {name: "http://elsewhere"})
                assert status == 400, (client, name)
                assert gateway.seen == [], (client, name)
                assert name in str(said)


async def test_metrics_count_loss_warnings_by_code() -> None:
    async with bench() as gateway, aiohttp.ClientSession() as http:
        await gateway.ask("openai", "gemini", {"made_up": 1, "user": "u"})
        async with http.get(f"{gateway.url}/metrics") as reply:
            text = await reply.text()
    assert 'dragoman_warnings_total{wire="openai",code="field_dropped"} 1' in text
    assert 'dragoman_warnings_total{wire="openai",code="user_dropped"} 1' in text
    assert "made_up" not in text


async def test_errors_name_fields_as_the_client_sent_them() -> None:
    async with bench() as gateway:
        for client, field, value in (
            ("gemini", "generationConfig.maxOutputTokens", 1.5),
            ("openai", "temperature", 10**400),
            ("ollama", "options.temperature", 10**400),
        ):
            status, _, said = await gateway.ask(client, "openai", expand({field: value}))
            name = field.removeprefix("options.")
            assert status == 400, said
            assert name in str(said), said
            assert "config." not in str(said), said
    gemini = SERVER_CODECS["gemini"]
    assert rename_settings(gemini, "config.seed: no") == "generationConfig.seed: no"


async def test_context_overflow_is_reported_in_the_vendors_format() -> None:
    app = create_app({"m": Listed(ContextOverflowError("too long"))})
    body = {"model": "m", **BODIES["openai"]}
    async with (
        serving(app) as url,
        aiohttp.ClientSession(url) as http,
        http.post(PATHS["openai"], json=body) as answer,
    ):
        said = (await answer.json())["error"]
    assert said["message"].startswith("This model's maximum context length is")
    assert said["code"] == "context_length_exceeded"


STOPPED = {"code": "cyber_policy", "message": "This content was flagged."}
FAILED = [
    {"type": "response.created", "response": {"id": "r1", "status": "in_progress"}},
    {"type": "response.failed", "response": {"id": "r1", "status": "failed", "error": STOPPED}},
]


@pytest.mark.parametrize("client", WIRES)
async def test_safety_stop_within_a_stream_keeps_its_code_for_every_client(client: str) -> None:
    """Codex repeats a flagged request five times if the code is missing (lidge-jun/opencodex#483;
    run with Codex 0.169.0 on 2026-11-18).
    """
    stream = b"".join([b"data: " + json.dumps(event).encode() + b"\n\n" for event in FAILED])
    asked: list[str] = []

    def answer(wire: str, body: Any) -> bytes:
        asked.append(wire)
        return stream

    path = PATHS[client].format(model="responses")
    path = path.replace(":generateContent", ":streamGenerateContent?alt=sse")
    path = path.removesuffix("converse") + "converse-stream" if client == "bedrock" else path
    async with bench(answer=answer) as gateway:
        for streams in (True, False):
            body = {**BODIES[client], "model": "responses", "stream": streams}
            if client in ("gemini", "bedrock"):
                del body["model"], body["stream"]
            status, _, said = await gateway.post(
                path if streams else PATHS[client].format(model="responses"), body
            )
            text = said.decode(errors="replace") if isinstance(said, bytes) else json.dumps(said)
            assert "cyber_policy" in text, text
            assert "server_error" not in text
            assert status in ((200, 400) if streams else (400,))
    assert asked == ["responses", "responses"]


@pytest.mark.parametrize(
    ("model", "needs"), [("claude-of-tomorrow", False), ("house-model", True), ("gpt-5", False)]
)
def test_gateway_adds_a_limit_only_if_neither_model_nor_quirks_have_one(
    model: str, needs: bool
) -> None:
    wire = "openai" if model.startswith("gpt") else "anthropic"
    provider = d.connect(model, wire=wire, base_url="http://127.0.0.1:9", api_key="x")
    assert describe_upstream(provider).needs_max_tokens is needs
