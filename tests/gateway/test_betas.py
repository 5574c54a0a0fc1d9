"""Test that the gateway passes a client's betas on, and no field whose beta it does not pass on."""

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import anthropic
import pytest

from dragoman.capabilities import Capabilities
from dragoman.errors import InvalidRequestError
from dragoman.gateway.access import read_headers
from dragoman.gateway.app import create_app
from dragoman.messages import Request, RuntimeConfig, User
from dragoman.provider import HttpProvider, Provider, connect
from dragoman.sim import ScriptedProvider
from dragoman.wire import CODECS, SERVER_CODECS
from dragoman.wire.rules import Betas

from ..server import Connection, serve
from .serving import serving
from .strict import FIELD_BETAS, FILES_BETA, SCOPE_BETA, SYSTEM_BETA, StrictServer
from .upstream import Bench, bench, write_reply

HEADER = "anthropic-beta"
ASKED: dict[str, Any] = {"model": "own", "max_tokens": 9}
USER = {"role": "user", "content": "Hi"}
MARKED = {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral", "scope": "global"}}
BUDGET = {"type": "tokens", "total": 20_000}
# A field of the body, its beta, and its name in the report if the beta is not passed on.
FIELDS: list[tuple[dict[str, Any], str, str]] = [
    ({"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
     "context-management-2025-06-27", "context_management_dropped context_management"),
    ({"compaction": {"type": "auto"}}, "compact-2026-09-04", "compaction_dropped compaction"),
    ({"fallbacks": [{"model": "other"}]}, "server-side-fallback-2026-06-01",
     "fallbacks_dropped fallbacks"),
    ({"output_config": {"effort": "high", "task_budget": BUDGET}}, "task-budgets-2026-03-13",
     "task_budget_dropped output_config.task_budget"),
    ({"thinking": {"type": "adaptive", "block_binding": {"on_mismatch": "drop"}}},
     "thinking-binding-controls-2026-08-01", "block_binding_dropped thinking.block_binding"),
    ({"messages": [{"role": "user", "content": [MARKED]}]}, SCOPE_BETA,
     "scope_dropped messages[0].content[0].cache_control.scope"),
]  # fmt: skip
LATE = [USER, {"role": "system", "content": "Be brief."}]


@contextlib.asynccontextmanager
async def strict(
    headers: dict[str, str] | None = None, **settings: Any
) -> AsyncIterator[tuple[Bench, StrictServer]]:
    """Serve a gateway with a model of the Messages wire and one of another wire."""
    with StrictServer(ScriptedProvider("Hello")) as upstream:
        urls = upstream.base_urls
        models: dict[str, Provider] = {
            "own": connect("m", wire="anthropic", base_url=urls["anthropic"], headers=headers),
            "opus": connect("claude-opus-4-8", wire="anthropic", base_url=urls["anthropic"]),
            "other": connect("m", wire="openai", base_url=urls["openai"]),
        }
        async with (
            serving(create_app(models, **settings)) as url,
            aiohttp.ClientSession() as http,
        ):
            yield Bench(url, [], http), upstream


async def ask(
    gateway: Bench, fields: dict[str, Any], *betas: str, header: str = HEADER
) -> tuple[int, str, Any]:
    """Send a request with these betas; return its status, its warnings and its body."""
    body = {**ASKED, "messages": [USER], **fields}
    named = {header: ",".join(betas)} if betas else {}
    status, headers, said = await gateway.post("/v1/messages", body, **named)
    return status, headers.get("x-dragoman-warnings", ""), said


@pytest.mark.parametrize(("fields", "beta", "report"), FIELDS, ids=[row[2] for row in FIELDS])
async def test_field_is_sent_with_an_allowed_beta_and_dropped_without_it(
    fields: dict[str, Any], beta: str, report: str
) -> None:
    async with strict(betas=("default", "server-side-fallback-*")) as (gateway, upstream):
        assert (await ask(gateway, fields, beta))[:2] == (200, "")
        assert upstream.bodies[-1].items() >= fields.items()
        assert upstream.betas[-1] == {beta}
        assert (await ask(gateway, fields))[:2] == (200, report)
        assert upstream.betas[-1] == frozenset()
        assert upstream.problems == []
    async with strict(betas=("none",)) as (gateway, upstream):
        status, shown, _ = await ask(gateway, fields, beta)
    assert status == 200
    assert shown == f"beta_dropped {HEADER}[{beta}]; {report}"
    assert upstream.betas == [frozenset()]
    assert upstream.problems == []


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({}, "2023-06-01"),
        ({"anthropic-version": "2026-10-21"}, "2026-10-21"),
        ({"anthropic-version": "2026-10-21", HEADER: SYSTEM_BETA}, "2026-10-21"),
        ({"anthropic-version": "not a version"}, "2023-06-01"),
    ],
)
async def test_version_of_the_client_is_sent_to_a_model_of_its_wire(
    given: dict[str, str], sent: str
) -> None:
    async with strict() as (gateway, upstream):
        body = {**ASKED, "messages": [USER]}
        status, headers, _ = await gateway.post("/v1/messages", body, **given)
        other = await gateway.post("/v1/messages", {**body, "model": "other"}, **given)
    assert status == 200
    assert "x-dragoman-warnings" not in headers
    assert upstream.versions == [sent]
    assert upstream.betas == [frozenset({SYSTEM_BETA} if HEADER in given else ())]
    assert "headers" not in upstream.bodies[0]
    assert other[0] == 200


@pytest.mark.parametrize("betas", [("default",), ("none",)])
@pytest.mark.parametrize("named", [(), (SYSTEM_BETA,)])
async def test_system_message_of_the_conversation_needs_no_beta(
    betas: tuple[str, ...], named: tuple[str, ...]
) -> None:
    """Claude 4.8 and later accept it without one, by the vendor's page."""
    marked = {**MARKED, "cache_control": {"type": "ephemeral"}}
    fields = {"model": "opus", "messages": [{"role": "user", "content": [marked]}, LATE[1]]}
    async with strict(betas=betas) as (gateway, upstream):
        status, shown, _ = await ask(gateway, fields, *named)
    is_dropped = named and betas == ("none",)
    assert status == 200
    assert shown == (f"beta_dropped {HEADER}[{SYSTEM_BETA}]" if is_dropped else "")
    assert upstream.bodies[-1]["messages"] == fields["messages"]
    assert upstream.problems == []


@pytest.mark.parametrize(
    ("field", "opt_in"),
    [({"speed": "fast"}, "fast-mode-*"), ({"inference_geo": "us"}, "inference-geo")],
)
async def test_field_that_raises_the_price_needs_an_operator_who_allows_it(
    field: dict[str, Any], opt_in: str
) -> None:
    """Opus 5.5 answers fast at twice the price without a beta (anthropic SDK 2.10; seen
    2026-11-18), and prices and budgets are computed at the usual rate.
    """
    (name,) = field
    report = f"{name}_dropped {name}"
    async with strict() as (gateway, upstream):
        assert (await ask(gateway, field))[:2] == (200, report)
        assert (await ask(gateway, field, "effort-2025-11-24"))[:2] == (200, report)
        assert [name in body for body in upstream.bodies] == [False, False]
    async with strict(betas=("default", opt_in)) as (gateway, upstream):
        assert (await ask(gateway, field))[:2] == (200, "")
        assert (await ask(gateway, {**field, "model": "other"}))[:2] == (200, report)
        assert upstream.bodies[-1].items() >= field.items()


# A wire, the field of its service tier, a value that raises the price, and one that does not.
TIERS: list[tuple[str, str, Any, Any]] = [
    ("openai", "service_tier", "priority", "flex"),
    ("openai", "service_tier", "fast", "flex"),
    ("openai", "service_tier", "ultrafast", "scale"),
    ("responses", "service_tier", "priority", "flex"),
    ("gemini", "serviceTier", "priority", "flex"),
    ("bedrock", "serviceTier", {"type": "priority"}, {"type": "flex"}),
    ("bedrock", "performanceConfig", {"latency": "optimized"}, {"latency": "standard"}),
]


@pytest.mark.parametrize(("wire", "name", "dear", "cheap"), TIERS)
async def test_tier_that_raises_the_price_needs_an_operator_who_allows_it(
    wire: str, name: str, dear: Any, cheap: Any
) -> None:
    """A priority tier costs up to 2.5 times as much, and ``ultrafast`` 6 times
    (theopenco/llmgateway#3117, 2026-07; ai.google.dev/gemini-api/docs/optimization;
    developers.openai.com/api/docs/guides/ultrafast-mode; seen 2026-11-19).
    """
    other = "anthropic"
    async with bench() as gateway:
        status, headers, _ = await gateway.ask(wire, wire, {name: dear})
        assert status == 200
        assert name not in gateway.seen[0]
        assert headers["x-dragoman-warnings"] == f"{name}_dropped {name}"
        _, headers, _ = await gateway.ask(wire, wire, {name: cheap})
        assert gateway.seen[0][name] == cheap
        assert headers.get("x-dragoman-warnings") is None
    async with bench(betas=("default", "priority-tier")) as gateway:
        _, headers, _ = await gateway.ask(wire, wire, {name: dear})
        assert gateway.seen[0][name] == dear
        assert headers.get("x-dragoman-warnings") is None
        _, headers, _ = await gateway.ask(wire, other, {name: dear})
        assert f"{name}_dropped {name}" in headers["x-dragoman-warnings"]


async def test_fast_mode_is_sent_with_a_beta_that_the_operator_allows_by_its_full_name() -> None:
    beta = "fast-mode-2026-02-01"
    async with strict(betas=("default", beta)) as (gateway, upstream):
        assert (await ask(gateway, {"speed": "fast"}))[1] == "speed_dropped speed"
        assert (await ask(gateway, {"speed": "fast"}, beta))[:2] == (200, "")
    assert upstream.bodies[-1]["speed"] == "fast"


UNKNOWN = ["effort-2025-11-24", "web-search-2025-03-05"]


@pytest.mark.parametrize(
    ("message", "spares"),
    [
        (
            "Unexpected value(s) `effort-2025-11-24`, `web-search-2025-03-05` for the "
            "`anthropic-beta` header. Please consult our documentation.",
            True,
        ),
        ("invalid beta flag", False),
    ],
)
async def test_beta_that_the_models_server_refuses_is_left_out_from_then_on(
    message: str, spares: bool
) -> None:
    """Google Cloud and Bedrock refuse the betas of Claude Code that they do not know
    (anthropics/claude-agent-sdk-typescript#307; anthropics/claude-code#49370; seen 2026-11-18).
    """
    seen: list[list[str]] = []

    async def handler(connection: Connection) -> None:
        named = [each for each in connection.seen.headers.get(HEADER, "").split(",") if each]
        seen.append(named)
        if set(UNKNOWN) & set(named):
            body = {
                "type": "error",
                "error": {"type": "invalid_request_error", "message": message},
            }
            connection.reply(400, json.dumps(body).encode())
        else:
            connection.reply(200, write_reply("anthropic", "Hello"))

    betas = [UNKNOWN[0], "context-1m-2025-08-07", UNKNOWN[1]]
    kept = ["context-1m-2025-08-07"] if spares else []
    async with serve(handler) as upstream, aiohttp.ClientSession() as http:
        model = connect("m", wire="anthropic", base_url=upstream.url, quirks={"raw_predict": True})
        async with serving(create_app({"own": model})) as url:
            gateway = Bench(url, [], http)
            first = await ask(gateway, {}, *betas)
            again = await ask(gateway, {}, *betas)
            plain = await ask(gateway, {})
    assert [each[0] for each in (first, again, plain)] == [200, 200, 200]
    assert seen == [betas, kept, kept, []]
    for _, shown, _ in (first, again):
        assert [f"{HEADER}[{name}]" in shown for name in betas] == [True, not spares, True]
    assert isinstance(model, HttpProvider)
    assert len(model.lessons) == 1


def test_error_about_betas_that_were_not_sent_teaches_nothing() -> None:
    codec = CODECS["anthropic"].connect("m", "http://x", None, Capabilities())
    error = InvalidRequestError("no", status=400, provider_message="invalid beta flag")
    config = RuntimeConfig(max_tokens=9)
    assert codec.learn(error, Request([User("Hi")], config=config, model="m")) is None


async def test_unknown_field_is_sent_unless_a_beta_is_dropped() -> None:
    async with strict(betas=("default", "new-*")) as (gateway, upstream):
        await ask(gateway, {"made_up": 1}, "new-2027-01-01")
        assert upstream.bodies[-1]["made_up"] == 1
        _, shown, _ = await ask(gateway, {"made_up": 1}, "other-2027-01-01")
    assert shown == f"beta_dropped {HEADER}[other-2027-01-01]; field_dropped made_up"
    assert "made_up" not in upstream.bodies[-1]


@pytest.mark.parametrize(
    ("fields", "beta"),
    [
        ({"mcp_servers": [{"type": "url", "url": "http://x", "name": "x"}]}, "mcp-client-*"),
        ({"tools": [{"type": "computer_20250124", "name": "computer"}]}, "computer-use-*"),
        ({"messages": [{"role": "user", "content": [
            {"type": "document", "source": {"type": "file", "file_id": "f"}}]}]}, "files-api-*"),
    ],
)  # fmt: skip
async def test_request_that_cannot_do_without_its_beta_is_rejected(
    fields: dict[str, Any], beta: str
) -> None:
    async with strict() as (gateway, upstream):
        status, _, said = await ask(gateway, fields)
    assert status == 400
    assert upstream.bodies == []
    assert said["error"]["message"].endswith(
        f"must name its beta, and this gateway allow it: {beta}"
    )


async def test_files_of_the_operator_need_an_operator_who_allows_them() -> None:
    """By default a client cannot reach the files that other clients uploaded."""
    source = {"type": "file", "file_id": "f"}
    fields = {"messages": [{"role": "user", "content": [{"type": "document", "source": source}]}]}
    async with strict() as (gateway, upstream):
        assert (await ask(gateway, fields, FILES_BETA))[0] == 400
        assert upstream.bodies == []
    async with strict(betas=("files-api-*",)) as (gateway, upstream):
        await ask(gateway, fields, FILES_BETA)
    assert upstream.bodies[-1]["messages"] == fields["messages"]
    assert upstream.problems == []


async def test_model_of_another_wire_reports_that_it_has_no_betas() -> None:
    fields = {"model": "other", **FIELDS[0][0]}
    async with strict() as (gateway, _):
        _, shown, _ = await ask(gateway, fields, FIELDS[0][1], "oauth-2025-04-20")
    assert shown == (
        f"beta_dropped {HEADER}; beta_dropped {HEADER}[oauth-2025-04-20]; {FIELDS[0][2]}"
    )


async def test_client_betas_are_added_to_configured_betas() -> None:
    async with strict(headers={"Anthropic-Beta": "context-1m-2025-08-07"}) as (gateway, upstream):
        await ask(gateway, {}, "effort-2025-11-24")
        await ask(gateway, {})
    both = {"context-1m-2025-08-07", "effort-2025-11-24"}
    assert upstream.betas == [both, {"context-1m-2025-08-07"}]


def test_values_of_a_repeated_header_are_joined() -> None:
    pairs = [(b"anthropic-beta", b"a"), (b"accept", b"*/*"), (b"anthropic-beta", b"b")]
    assert read_headers({"headers": pairs}) == {"anthropic-beta": "a, b", "accept": "*/*"}


async def test_betas_in_a_body_do_not_bypass_the_list() -> None:
    async with strict() as (gateway, upstream):
        _, shown, _ = await ask(gateway, {"betas": [FILES_BETA]})
    assert shown == "betas_dropped betas"
    assert upstream.betas == [frozenset()]


async def test_older_structured_output_of_the_sdk_reaches_a_model_of_any_wire() -> None:
    """``output_format`` is the older name of ``output_config.format``."""
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    older = {"output_format": {"type": "json_schema", "schema": schema}}
    async with strict() as (gateway, upstream):
        assert (await ask(gateway, older))[0] == 200
        assert upstream.bodies[-1]["output_config"]["format"]["schema"]["required"] == ["a"]
        assert (await ask(gateway, {"model": "other", **older}))[:2] == (200, "")
        assert upstream.requests[-1].response_schema is not None
        both = {**older, "output_config": {"format": older["output_format"]}}
        status, _, said = await ask(gateway, both)
    assert status == 400
    assert upstream.problems == []
    assert "older name of output_config.format" in said["error"]["message"]


async def test_beta_namespace_of_the_sdk_works_through_the_gateway() -> None:
    fields: dict[str, Any] = FIELDS[0][0]
    async with (
        strict() as (gateway, upstream),
        anthropic.AsyncAnthropic(base_url=gateway.url, api_key="x", max_retries=0) as client,
    ):
        reply = await client.beta.messages.create(
            model="own", max_tokens=9, messages=[{"role": "user", "content": "Hi"}],
            betas=["context-1m-2025-08-07", FIELDS[0][1]], **fields,
        )  # fmt: skip
    assert reply.content[0].type == "text"
    assert upstream.betas == [{"context-1m-2025-08-07", FIELDS[0][1]}]


def test_default_list_has_all_betas_the_strict_server_needs_except_account_betas() -> None:
    codec = SERVER_CODECS["anthropic"]
    account = {*FIELD_BETAS["fallbacks"], FILES_BETA, "oauth-2025-04-20"}
    named = {*[beta for betas in FIELD_BETAS.values() for beta in betas], SYSTEM_BETA, *account}
    read = codec.read_betas({HEADER: ", ".join(sorted(named))})
    assert read == Betas(tuple(sorted(named - account)), tuple(sorted(account)))
