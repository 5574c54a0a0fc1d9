"""Model groups, settings of adapters, and the lifetime of providers that a registry opens."""

# ruff: noqa: SLF001 - an HTTP provider does not show its deadlines

import asyncio
import json
import ssl
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import dragoman as d
from dragoman.cli import main
from dragoman.middleware import walk
from dragoman.provider import HttpProvider
from dragoman.registry import ConfigError, read_file
from tests.rows import read_table

from .server import Connection, completion, replying, serve
from .transport.certificates import Authority, server_context
from .waiting import settle, until

answer = replying(200, completion("Hi"))
fail = replying(503, b"{}")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "models.yaml"
    monkeypatch.setenv("DRAGOMAN_CONFIG", str(path))
    return path


def two(
    file: Path, first: str, second: str, more: str = "", group: str = "candidates: [a:m, b:m]"
) -> None:
    file.write_text(
        f"adapters:\n  a: {{type: openai-compatible, base_url: {first}/v1, timeouts: {{connect: "
        f"4}}}}\n  b: {{type: openai-compatible, base_url: {second}/v1}}\ngroups:\n  both:\n   "
        f" {group}\n{more}"
    )


async def test_model_group_is_opened_like_a_model(file: Path) -> None:
    async with serve(fail) as bad, serve(answer) as good:
        two(file, bad.url, good.url)
        async with d.connect("both") as model:
            for _ in range(7):
                assert (await model.complete("Hi")).text == "Hi"
    assert len(bad.requests) == 5  # after five failures the circuit breaker opens
    assert len(good.requests) == 7


async def test_commands_accept_a_group_name(file: Path, tmp_path: Path) -> None:
    async with serve(fail) as bad, serve(answer) as good:
        two(file, bad.url, good.url)
        (tmp_path / "in.jsonl").write_text('{"prompt": "Hi"}\n')
        asked = await asyncio.to_thread(
            CliRunner().invoke, main, ["ask", "both", "Hi", "--no-log"]
        )
        assert "Hi" in asked.stdout
        assert asked.exit_code == 0
        files = [str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl")]
        words = ["batch", *files, "--model", "both"]
        done = await asyncio.to_thread(CliRunner().invoke, main, words)
        assert done.exit_code == 0, done.output
    assert "Hi" in (tmp_path / "out.jsonl").read_text()
    assert len(good.requests) == 2


async def test_circuit_breaker_is_shared_by_all_groups_of_a_file(file: Path) -> None:
    async with serve(fail) as bad, serve(answer) as good:
        more = "  other: {candidates: [a:m, b:m]}\navailability: {failures: 2}\n"
        two(file, bad.url, good.url, more)
        async with d.Registry.load() as registry:
            for name in ("both", "both", "other", "other"):
                await registry.open(name).complete("Hi")
        async with d.connect("both") as one, d.connect("other") as another:
            for model in (one, another, one, another):
                await model.complete("Hi")
    assert len(bad.requests) == 4


async def test_each_candidate_of_a_group_has_its_own_settings(file: Path) -> None:
    group = """strategy: weighted
    aliases: [pair]
    candidates:
    - {model: a:m, weight: 3, max_retries: 1, rate_limit: {requests_per_minute: 60}, timeouts: {total: 5, idle: none}}
    - {model: b:m, timeouts: 7}"""
    more = "availability: {failures: 3, quiet_seconds: 30}\n"
    two(file, "http://127.0.0.1:1", "http://127.0.0.1:2", more, group)
    async with d.Registry.load() as registry:
        model = registry.open("pair")
        assert d.describe(model).splitlines() == [
            "Fallback(name='both', strategy='weighted', weights=[3.0, 1.0])",
            "  1. Retry(max_retries=1)", "     RateLimit(requests_per_minute=60)",
            "     HttpProvider a:m", "  2. HttpProvider b:m",
        ]  # fmt: skip
        assert model.availability.thresholds.failures == 3
        ends: list[Any] = [part for part in walk(model) if isinstance(part, HttpProvider)]
        assert [end._timeouts.total for end in ends] == [5, 7]
        # A timeout that the candidate does not set comes from the adapter.
        assert ends[0]._timeouts.idle is None
        assert ends[0]._timeouts.connect == 4
        entry = registry.find("pair")
        assert entry.id == "both"
        assert entry.status == "configured"
        assert entry.aliases == ("pair",)
        assert registry.names()[0] == "both"
        assert d.connect("both", retries=4).model == "m"
        with pytest.raises(ValueError, match="api_key: both is a group of models"):
            d.connect("both", api_key="k")


async def test_keyless_candidate_is_skipped(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GROQ_API_KEY", raising=False)
    async with serve(answer) as good:
        more = "  none: {candidates: [groq:x]}\n"
        two(file, good.url, good.url, more, "candidates: [groq:x, b:m]")
        async with d.Registry.load() as registry:
            assert (await registry.open("both").complete("Hi")).text == "Hi"
            assert registry.find("none").status == "not_configured"
            with pytest.raises(d.AuthenticationError, match="GROQ_API_KEY"):
                registry.open("none")
            with pytest.raises(d.InvalidModelError):
                registry.open("bot")


async def test_keys_of_an_adapter_are_rotated(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    statuses = {"Bearer one": 429, "Bearer two": 401, "Bearer three": 200}

    async def by_key(connection: Connection) -> None:
        connection.reply(statuses[connection.seen.headers["authorization"]], completion("Hi"))

    for name, key in (("K1", "one"), ("K2", "two"), ("K4", "three")):
        monkeypatch.setenv(name, key)
    monkeypatch.delenv("K3", raising=False)
    async with serve(by_key) as server:
        file.write_text(
            f"adapters: {{a: {{type: openai-compatible, base_url: {server.base_url},"
            " api_key_env: [K1, K2, K3, K4], max_retries: 0}}\n"
        )
        async with d.Registry.load() as registry:
            for _ in range(2):
                assert (await registry.open("a:m").complete("Hi")).text == "Hi"
            assert d.describe(registry.open("a:m")).splitlines()[0] == "KeyRotation(keys=3)"
            statuses["Bearer three"] = 429
            with pytest.raises(d.RateLimitError):
                await registry.open("a:m").complete("Hi")
    seen = [request.headers["authorization"] for request in server.requests]
    assert seen == ["Bearer one", "Bearer two", "Bearer three", "Bearer three", "Bearer three"]


async def test_adapter_limits_and_timeouts_are_enforced(file: Path) -> None:
    running = most = 0

    async def slow(connection: Connection) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await settle()
        running -= 1
        connection.reply(200, completion("Hi"))

    async with serve(slow) as server:
        file.write_text(
            f"adapters: {{a: {{type: openai-compatible, base_url: {server.base_url}, max_retries: "
            "0, rate_limit: {max_concurrency: 2}, timeouts: {total: 33, connect: 3}}}\n"
        )
        async with d.Registry.load() as registry:
            models = [registry.open("a:m"), registry.open("a:n")]
            await asyncio.gather(*[model.complete("Hi") for model in models * 4])
            end: Any = list(walk(models[0]))[-1]
            assert end._timeouts.total == 33
            assert end._timeouts.connect == 3
    assert most == 2  # both models share one concurrency limit


async def test_adapter_uses_its_tls_certificates(file: Path) -> None:
    authority = Authority(file.parent, "authority")
    context = server_context(authority.issue("127.0.0.1"))
    context.load_verify_locations(authority.path)
    context.verify_mode = ssl.CERT_REQUIRED
    cert, key = authority.issue("client")

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split()[0]))
        body = completion("Hi")
        about = b"connection: close\r\ncontent-length: %d" % len(body)
        writer.write(b"HTTP/1.1 200 OK\r\n" + about + b"\r\n\r\n" + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(connected, "127.0.0.1", 0, ssl=context) as listener:
        url = f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1"
        kind = f"{{type: openai-compatible, max_retries: 0, base_url: '{url}', "
        file.write_text(
            f"adapters:\n  mutual: {kind}ca: authority.pem, client_cert: {{cert: {cert}, key: "
            f"{key}}}}}\n  anonymous: {kind}ca: authority.pem}}\n  untrusting: {kind}proxy: none}}\n"
        )
        async with d.Registry.load() as registry:
            assert (await registry.open("mutual:m").complete("Hi")).text == "Hi"
            for name in ("anonymous:m", "untrusting:m"):
                with pytest.raises(d.NetworkError):
                    await registry.open(name).complete("Hi")


async def test_adapter_uses_its_proxy(file: Path) -> None:
    async with serve(answer) as proxy:
        file.write_text(
            "adapters: {a: {type: openai-compatible, base_url: 'http://far.invalid/v1', proxy: "
            f"'{proxy.url}'}}}}\n"
        )
        async with d.Registry.load() as registry:
            assert (await registry.open("a:m").complete("Hi")).text == "Hi"
    assert proxy.requests[0].path == "http://far.invalid/v1/chat/completions"


async def test_one_name_opens_one_provider_and_each_adapter_has_one_pool(file: Path) -> None:
    async with serve(answer) as server:
        two(file, server.url, server.url)
        async with d.Registry.load() as registry:
            assert registry.open("a:m") is registry.open("a:m")
            assert registry.open("both") is registry.open("both")
            assert registry.open("a:m") is not registry.open("a:m", timeouts=3)
            for name in ("a:m", "a:n", "a:m", "a:o"):
                await registry.open(name).complete("Hi")
            assert server.open == 1
        await until(lambda: not server.open, "the connection to close")
        with pytest.raises(d.InvalidRequestError, match="registry of this provider is closed"):
            await registry.open("a:m").complete("Hi")


async def test_closing_one_provider_does_not_affect_others(file: Path) -> None:
    gate = asyncio.Event()

    async def wait(connection: Connection) -> None:
        if connection.seen.json["model"] == "slow":
            await gate.wait()
        connection.reply(200, completion("Hi"))

    async with serve(wait) as server:
        two(file, server.url, server.url)
        async with d.connect("a:slow") as one:
            running = asyncio.ensure_future(one.complete("Hi"))
            async with d.connect("a:m") as other:
                await other.complete("Hi")
            async with d.connect("a:slow"):
                pass
            gate.set()
            assert (await running).text == "Hi"
            await one.close()
            assert (await one.complete("Hi")).text == "Hi"  # the provider can be used again


def test_provider_from_a_registry_works_in_every_event_loop(file: Path) -> None:
    async def call(registry: d.Registry) -> None:
        async with serve(answer) as server:
            two(file, server.url, server.url)
            async with registry.open("a:m") as model:
                await model.complete("Hi")

    file.write_text("")
    registry = d.Registry.load()
    for _ in range(2):
        asyncio.run(call(registry))


async def test_new_providers_are_opened_after_the_file_changes(file: Path) -> None:
    async with serve(fail) as bad, serve(answer) as good:
        two(file, bad.url, bad.url)
        async with d.Registry.load() as registry:
            before = registry.open("both")
            with pytest.raises(d.UnavailableError):
                await before.complete("Hi")
            two(file, good.url, good.url, "# changed\n")
            assert registry.open("both") is not before
            assert (await registry.open("both").complete("Hi")).text == "Hi"


MISTAKES = read_table("group_mistakes")
ADAPTERS = read_table("adapter_mistakes")


@pytest.mark.parametrize(
    ("text", "line", "problem"), MISTAKES, ids=[text for text, _, _ in MISTAKES]
)
def test_mistake_in_a_group_has_its_line(file: Path, text: str, line: int, problem: str) -> None:
    file.write_text(
        "adapters: {a: {type: openai-compatible, base_url: "
        f"'http://127.0.0.1:1/v1'}}}}\n{text}\n"
    )
    with pytest.raises(ConfigError) as caught:
        d.Registry.load()
    assert str(caught.value).startswith(f"{file}:{line}: ")
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("text", "problem"), ADAPTERS, ids=[text for text, _ in ADAPTERS])
def test_mistake_in_an_adapter_has_its_line(file: Path, text: str, problem: str) -> None:
    file.write_text(f"adapters:\n  a: {{type: openai,\n    {text}}}\n")
    found = [str(error) for error in read_file(file).problems]
    assert found[0].startswith(f"{file}:3: adapters.")
    assert problem in found[0]


NESTED = """
adapters:
  a: {{type: openai-compatible, base_url: {a}/v1}}
  b: {{type: openai-compatible, base_url: {b}/v1}}
  c: {{type: openai-compatible, base_url: {c}/v1}}
groups:
  outer: {{candidates: [inner, "c:m"]}}
  inner:
    strategy: weighted
    candidates: [{{model: "a:m", weight: 3}}, {{model: "b:m", weight: 1}}]
  spared:
    strategy: weighted
    candidates: [{{model: "a:m", weight: 3}}, {{model: "b:m"}}, {{model: "c:m", weight: 0}}]
"""


@pytest.mark.parametrize("name", ["outer", "spared"])
async def test_calls_are_balanced_and_the_spare_is_called_if_no_other_can_answer(
    file: Path, name: str
) -> None:
    works = True

    async def reply(connection: Connection) -> None:
        await (answer if works else fail)(connection)

    async with serve(reply) as first, serve(reply) as second, serve(answer) as spare:
        file.write_text(NESTED.format(a=first.url, b=second.url, c=spare.url))
        async with d.connect(name) as model:
            for _ in range(8):
                assert (await model.complete("Hi")).text == "Hi"
            assert len(first.requests) == 6
            assert len(second.requests) == 2
            assert len(spare.requests) == 0
            works = False
            assert (await model.complete("Hi")).text == "Hi"
            assert len(first.requests) + len(second.requests) == 10
            assert len(spare.requests) == 1


@pytest.mark.parametrize(
    ("groups", "problem"),
    [
        ("g: {candidates: [h]}, h: {candidates: [i]}, i: {candidates: [g]}",
         "groups.g.candidates: contains itself: g -> h -> i -> g"),
        ("g: {candidates: [k], aliases: [k]}", "contains itself: g -> g"),
        ("g: {candidates: [{model: h, timeouts: {idle: 3}}]}, h: {candidates: [local]}",
         "groups.g: h is a group: set timeouts for its models"),
        ("g: {candidates: [{model: local, weight: 0}]}", "needs a candidate with a weight above 0"),
        ("g: {candidates: [{model: local, weight: -1}]}", "a number from 0 to 1,000,000"),
    ],
)  # fmt: skip
def test_group_that_cannot_be_opened_is_refused(file: Path, groups: str, problem: str) -> None:
    file.write_text(f"groups: {{{groups}}}\n")
    assert problem in "\n".join([str(each) for each in read_file(file).problems])


def test_explanation_of_a_group_names_the_models_of_its_groups(file: Path) -> None:
    at = "http://127.0.0.1:1"
    file.write_text(NESTED.format(a=at, b=at, c=at))
    made = CliRunner().invoke(main, ["config", "explain", "outer", "--json"])
    assert [each["id"] for each in json.loads(made.stdout)["models"]] == ["a:m", "b:m", "c:m"]
