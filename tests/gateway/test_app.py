"""Test which requests the gateway accepts, which it rejects early, and how its replies end."""

import asyncio
import json
import logging
import math
import os
import subprocess
from decimal import Decimal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dragoman.errors import ProviderError, UnavailableError
from dragoman.events import Usage
from dragoman.gateway.access import Bounds
from dragoman.gateway.app import create_app
from dragoman.gateway.keys import Key, KeyRing, hash_key, new_key
from dragoman.gateway.ledger import Ledger
from dragoman.messages import Request
from dragoman.provider import connect
from dragoman.registry import ConfigError, Registry
from dragoman.transport import FixtureTransport
from tests.attacks.gateway_app import post as send
from tests.listed import Listed, reply
from tests.rows import read_table
from tests.waiting import arrival, settle, virtual_time

from .serving import raw, serving

BODY = {"model": "fast", "messages": [{"role": "user", "content": "a secret prompt"}]}
MESSAGES = {**BODY, "max_tokens": 5}
PATHS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", BODY),
    ("/v1/messages", MESSAGES),
]
ANN = "dg-ann"
BOB = "dg-bob"
KEYS = KeyRing(
    [Key("ann", hash_key(ANN), ("fast",)), Key("bob", hash_key(BOB), ("slow", "other:*"))]
)


async def post(
    url: str, body: Any, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with aiohttp.ClientSession() as session:
        headers = {"content-type": "application/json", **(headers or {})}
        async with session.post(url, data=data, headers=headers) as reply:
            found = {name.lower(): value for name, value in reply.headers.items()}
            return reply.status, found, await reply.read()


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


# --- requests that are rejected before any provider is called ----------------------------------

REFUSED: list[tuple[str, dict[str, str], int]] = [
    ("no key", {}, 401),
    ("a wrong key", bearer("dg-wrong"), 401),
    ("an empty key", {"authorization": "Bearer "}, 401),
    ("another scheme", {"authorization": f"Basic {ANN}"}, 401),
    ("the hash itself", bearer(hash_key(ANN)), 401),
    ("a key for another model", bearer(BOB), 404),
]


@pytest.mark.parametrize(("path", "body"), PATHS)
async def test_request_without_a_valid_key_reaches_no_provider(
    path: str, body: dict[str, Any]
) -> None:
    model = Listed("Hello", repeat=True)
    async with serving(create_app({"fast": model, "slow": model}, keys=KEYS)) as url:
        for name, headers, expected in REFUSED:
            status, _, said = await post(url + path, body, headers)
            assert status == expected, name
            assert b"error" in said
        assert model.requests == []
        status, _, _ = await post(url + path, body, bearer(ANN))
        assert status == 200
    assert len(model.requests) == 1


def head(*lines: str, path: str = "/v1/chat/completions", length: int | None = None) -> bytes:
    size = [] if length is None else [f"content-length: {length}"]
    return "\r\n".join(
        [f"POST {path} HTTP/1.1", *lines, *size, "connection: close", "", ""]
    ).encode()


DATA = json.dumps(BODY).encode()
JSON = "content-type: application/json"
HOST = "host: localhost"
OURS = f"authorization: Bearer {ANN}"


async def test_oversized_body_is_rejected_before_it_is_read() -> None:
    model = Listed("Hello", repeat=True)
    async with serving(create_app({"fast": model}, bounds=Bounds(body_bytes=1000))) as url:
        said = await raw(url, head(HOST, JSON, length=10**9) + b"{")
        assert said.startswith(b"HTTP/1.1 413")
        chunks = b"".join([b"1f4\r\n" + b" " * 500 + b"\r\n" for _ in range(4)])
        said = await raw(url, head(HOST, JSON, "transfer-encoding: chunked") + chunks)
        assert said.startswith(b"HTTP/1.1 413")
    assert model.requests == []


PLAIN = [  # headers of programs that send JSON without a content type, and the status of the reply
    ([], b"200"),
    (["content-type: application/x-www-form-urlencoded"], b"200"),
    (["content-type: text/plain"], b"415"),
    (["content-encoding: gzip"], b"415"),
    (["origin: http://localhost"], b"415"),
    (["referer: http://localhost/"], b"415"),
    (["sec-fetch-site: cross-site"], b"415"),
    (["origin: https://evil.test"], b"403"),
]


async def test_programs_may_omit_the_content_type_on_the_ollama_wire() -> None:
    data = json.dumps({**BODY, "stream": False}).encode()
    async with serving(create_app({"fast": Listed("Hello", repeat=True)})) as url:
        for more, status in PLAIN:
            said = await raw(url, head(HOST, *more, path="/api/chat", length=len(data)) + data)
            assert said.startswith(b"HTTP/1.1 " + status), more
            other = await raw(url, head(HOST, *more, length=len(data)) + data)
            assert other.startswith(b"HTTP/1.1 4"), more


async def test_web_pages_cannot_use_a_gateway_without_keys() -> None:
    model = Listed("Hello", repeat=True)
    async with serving(create_app({"fast": model})) as url:
        for headers, status in read_table("web_pages_cannot_use_a_gateway_without_keys"):
            model.requests.clear()
            found, _, _ = await post(f"{url}/v1/chat/completions", BODY, headers)
            assert found == status, headers
            assert len(model.requests) == (status == 200), headers


async def test_unknown_model_names_are_never_opened_as_providers(tmp_path: Path) -> None:
    registry = Registry.load(_write(tmp_path / "models.yaml", "models: {}\n"))
    async with serving(create_app(registry)) as url:
        for name in ("local", "local:/etc/passwd", "openai:gpt-x", "../fast", "", "slow"):
            status, _, _ = await post(f"{url}/v1/chat/completions", {**BODY, "model": name})
            assert status == 404, name


def _write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


async def test_invalid_request_reaches_no_provider() -> None:
    model = Listed("Hello", repeat=True)
    wrong = [b"{", {"model": "fast"}, {**BODY, "messages": []}, {**BODY, "temperature": "hot"}]
    async with serving(create_app({"fast": model})) as url:
        for body in wrong:
            status, _, said = await post(f"{url}/v1/chat/completions", body)
            assert status == 400
            assert "message" in json.loads(said)["error"]
    assert model.requests == []


# --- rate limits, budgets and concurrency limits of a key --------------------------------------


async def test_calls_over_the_rate_limit_of_a_key_are_rejected() -> None:
    model = Listed("Hello", repeat=True)
    keys = KeyRing([Key("ann", hash_key(ANN), requests_per_minute=2)])
    ledger = Ledger(clock=lambda: 600.0)
    async with serving(create_app({"fast": model}, keys=keys, ledger=ledger)) as url:
        found = [await post(f"{url}/v1/chat/completions", BODY, bearer(ANN)) for _ in range(3)]
    assert [status for status, _, _ in found] == [200, 200, 429]
    assert found[2][1]["retry-after"] == "60"
    assert len(model.requests) == 2


async def test_calls_over_the_budget_of_a_key_are_rejected() -> None:
    used = Usage(input_tokens=100_000, output_tokens=0, total_tokens=100_000)
    model = Listed(
        reply("Hello", usage=used), name="anthropic", model="claude-sonnet-4-5", repeat=True
    )
    ledger = Ledger()
    keys = KeyRing([Key("ann", hash_key(ANN), budget_usd=Decimal("0.5"))])
    app = create_app(
        {"fast": model, "unpriced": Listed("x", name="nobody")}, keys=keys, ledger=ledger
    )
    async with serving(app) as url:
        found = [await post(f"{url}/v1/messages", MESSAGES, {"x-api-key": ANN}) for _ in range(3)]
        assert ledger.spent("ann") == Decimal("0.6")  # 3 dollars per million tokens
        unpriced = await post(
            f"{url}/v1/messages", {**MESSAGES, "model": "unpriced"}, {"x-api-key": ANN}
        )
    assert [status for status, _, _ in found] == [200, 200, 402]
    assert found[2][1]["x-should-retry"] == "false"
    assert unpriced[0] == 402
    assert len(model.requests) == 2


def test_concurrency_slots_of_a_process_end_with_it(tmp_path: Path) -> None:
    path = tmp_path / "used.db"
    ledger = Ledger(path)
    key = Key("ann", "x", max_concurrency=1)
    with pytest.MonkeyPatch.context() as patch, subprocess.Popen(["true"]) as ended:
        patch.setattr(os, "getpid", lambda: ended.pid)
        ledger.admit(key, 100)
    ledger.admit(key, 100)
    with pytest.raises(ProviderError, match="1 calls at a time") as caught:
        ledger.admit(key, 100)
    assert caught.value.retry_after == 1
    ledger.close()


def test_several_workers_with_limited_keys_need_a_shared_ledger(tmp_path: Path) -> None:
    keys = KeyRing([Key("ann", hash_key(ANN), max_concurrency=3)])
    with pytest.raises(ValueError, match="workers: keys with limits"):
        create_app({"fast": Listed("Hello")}, keys=keys, workers=4)
    create_app(
        {"fast": Listed("Hello")}, keys=keys, workers=4, ledger=Ledger(tmp_path / "used.db")
    )
    with pytest.raises(ValueError, match="workers: keys with limits"):
        create_app({"fast": Listed("Hello")}, keys=keys, workers=4, ledger=Ledger())


async def test_key_is_disabled_if_its_new_limit_cannot_be_enforced(tmp_path: Path) -> None:
    file = _write(tmp_path / "keys.yaml", f"keys:\n  ann:\n    hash: {hash_key(ANN)}\n")
    model = Listed("Hello", repeat=True)
    async with serving(create_app({"fast": model}, keys=KeyRing.load(file), workers=4)) as url:
        assert (await post(f"{url}/v1/chat/completions", BODY, bearer(ANN)))[0] == 200
        _write(file, f"keys:\n  ann:\n    hash: {hash_key(ANN)}\n    max_concurrency: 1\n")
        status, headers, said = await post(f"{url}/v1/chat/completions", BODY, bearer(ANN))
        assert status == 429
        assert headers["x-should-retry"] == "false"
        assert b"no shared ledger to count them in" in said
    assert len(model.requests) == 1


# --- the file of gateway keys ------------------------------------------------------------------


def test_keys_are_stored_as_hashes_and_reloaded(tmp_path: Path) -> None:
    key, digest = new_key()
    file = _write(
        tmp_path / "keys.yaml", f"keys:\n  ann:\n    hash: {digest}\n    models: [fast]\n"
    )
    assert key not in file.read_text()
    ring = KeyRing.load(file)
    found = ring.find(key)
    assert found is not None
    assert found.id == "ann"
    assert found.allows("fast")
    assert not found.allows("slow")
    assert ring.find(key[:-1]) is None
    assert ring.find(None) is None
    _write(file, f"keys:\n  bob:\n    hash: {hash_key('dg-other')}\n    budget_usd: 5\n")
    assert ring.find(key) is None
    _write(file, "keys: [")
    # If the file is invalid, the previous keys stay valid.
    assert ring.find("dg-other") is not None
    _write(file, f"keys:\n  old:\n    hash: {digest}\n    expires: 2020-01-01\n")
    assert ring.find(key) is None


async def test_pipe_in_place_of_the_key_file_does_not_block(tmp_path: Path) -> None:
    key, digest = new_key()
    file = _write(tmp_path / "keys.yaml", f"keys:\n  ann:\n    hash: {digest}\n")
    ring = KeyRing.load(file)
    file.unlink()
    os.mkfifo(file)
    assert await arrival(asyncio.to_thread(ring.find, key), "the result of find()") is None


async def test_the_last_key_can_be_revoked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key, digest = new_key()
    sound = f"keys:\n  ann:\n    hash: {digest}\n"
    file = _write(tmp_path / "keys.yaml", sound)
    async with serving(
        create_app({"fast": Listed("Hello", repeat=True)}, keys=KeyRing.load(file))
    ) as url:

        async def ask() -> int:
            return (await post(f"{url}/v1/chat/completions", BODY, bearer(key)))[0]

        assert await ask() == 200
        for text in ("", "keys: {}", "keys:", "{}", "# nobody\n", None):
            caplog.clear()
            file.unlink() if text is None else _write(file, text)
            assert await ask() == 401
            assert "holds no keys now" in caplog.text
            # An invalid file does not restore keys that were revoked before.
            _write(file, "keys: [")
            assert await ask() == 401
            _write(file, sound)
            assert await ask() == 200
            for wrong in ("keys: [", "keys: {ann: {hash: x}}", "\0"):
                _write(file, wrong)
                assert await ask() == 200


@pytest.mark.parametrize(("field", "complaint"), read_table("invalid_key_file_is_rejected"))
def test_invalid_key_file_is_rejected(field: str, complaint: str, tmp_path: Path) -> None:
    digest = "" if field.startswith("hash") else f"hash: sha256:{'0' * 64}, "
    with pytest.raises(ConfigError, match=complaint):
        KeyRing.load(_write(tmp_path / "keys.yaml", f"keys: {{a: {{{digest}{field}}}}}"))


# --- how replies end: disconnects, failures and deadlines --------------------------------------


@pytest.mark.parametrize(("path", "body"), PATHS)
async def test_upstream_call_stops_at_once_when_the_client_hangs_up(
    path: str, body: dict[str, Any]
) -> None:
    """The call stops without waiting for a timer."""
    forever = asyncio.Event()
    model = Listed(lambda request: [*reply("Hello")(request)[:2], forever], repeat=True)
    data = json.dumps({**body, "stream": True}).encode()
    async with serving(create_app({"fast": model})) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head(HOST, JSON, path=path, length=len(data)) + data)
        await arrival(reader.readuntil(b"He"), "the begin of the reply")
        assert model.running == 1
        writer.close()
        await settle()
        assert model.running == 0


async def test_reply_that_exceeds_the_deadline_ends_with_an_error() -> None:
    forever = asyncio.Event()
    model = Listed(lambda request: [*reply("Hello")(request)[:2], forever], repeat=True)
    app = create_app({"fast": model}, bounds=Bounds(reply_seconds=60))
    with virtual_time():
        async with serving(app) as url:
            status, _, said = await post(f"{url}/v1/chat/completions", {**BODY, "stream": True})
            assert status == 200
            assert b"longer than this gateway allows" in said
            status, _, _ = await post(f"{url}/v1/chat/completions", BODY)
            assert status == 504
    assert model.running == 0


async def test_exception_in_a_provider_shows_no_traceback_to_clients(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def bug(request: Request) -> Any:
        raise ZeroDivisionError("an inner secret")

    async with serving(create_app({"fast": Listed(bug, repeat=True)})) as url:
        for stream in (False, True):
            status, _, said = await post(f"{url}/v1/chat/completions", {**BODY, "stream": stream})
            assert status == 500
            assert b"Traceback" not in said
            assert b"secret" not in said


# --- access log and operational endpoints ------------------------------------------------------


async def test_access_log_contains_neither_content_nor_keys(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "dragoman.access"):
        async with serving(create_app({"fast": Listed("An answer.")}, keys=KEYS)) as url:
            await post(f"{url}/v1/chat/completions", BODY, bearer(ANN))
            await post(f"{url}/v1/chat/completions", BODY, bearer("dg-wrong"))
    lines = [
        json.loads(record.message) for record in caplog.records if record.name == "dragoman.access"
    ]
    found = [(line["type"], line["inbound"]) for line in lines]
    assert [(kind, line["status"], line.get("key"), line.get("name")) for kind, line in found] == [
        ("llm.call_completed", 200, "ann", "fast"),
        ("gateway.request", 401, None, None),
    ]
    assert lines[0]["output_tokens"] == 5
    for text in ("secret prompt", "An answer", ANN, "dg-wrong"):
        assert text not in caplog.text


async def test_gateway_serves_health_readiness_metrics_and_model_lists() -> None:
    async with (
        serving(create_app({"fast": Listed("Hello")}, keys=KEYS)) as url,
        aiohttp.ClientSession() as session,
    ):

        async def fetch(path: str, headers: dict[str, str] | None = None) -> tuple[int, str]:
            async with session.get(url + path, headers=headers) as reply:
                return reply.status, await reply.text()

        assert (await fetch("/health"))[0] == 200
        assert (await fetch("/ready"))[0] == 401
        assert (await fetch("/ready", bearer(BOB)))[0] == 200
        assert (await fetch("/openapi.json"))[0] == 200
        assert (await fetch("/metrics"))[0] == 401
        assert (await fetch("/v1/models"))[0] == 401
        assert json.loads((await fetch("/v1/models", bearer(BOB)))[1])["data"] == []
        assert [
            each["id"] for each in json.loads((await fetch("/v1/models", bearer(ANN)))[1])["data"]
        ] == ["fast"]
        assert (await fetch("/v1/models/fast", bearer(BOB)))[0] == 404
        await post(f"{url}/v1/chat/completions", BODY, bearer(ANN))
        text = (await fetch("/metrics", bearer(ANN)))[1]
        assert 'dragoman_requests_total{wire="openai",model="fast",status="200"} 1' in text
        assert 'dragoman_tokens_total{model="fast",kind="input"} 10' in text


class Asked(Listed):
    """Provide a model whose readiness check waits until the test sets an event, and count these
    checks.
    """

    def __init__(self) -> None:
        super().__init__("Hello", repeat=True)
        self.gate = asyncio.Event()
        self.asked = 0
        self.error: Exception | None = UnavailableError("down")

    async def ready(self) -> None:
        self.asked += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error


async def get(app: Any, path: str, *headers: tuple[str, str]) -> tuple[int, Any]:
    """Send a request directly to the application, without a server and without a lifespan."""
    answer = await send(app, "", b"", path=path, more=headers, method="GET")
    return answer.status, json.loads(answer.body)


HELD = ("authorization", f"Bearer {ANN}")


async def test_concurrent_readiness_checks_share_one_probe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dragoman.gateway.models._READY_FOR", math.inf)
    model = Asked()
    app = create_app({"fast": model}, keys=KEYS)
    callers = [asyncio.ensure_future(get(app, "/ready", HELD)) for _ in range(3)]
    await settle()
    late = asyncio.ensure_future(get(app, "/ready", ("x-api-key", BOB)))
    await settle()
    # The provider has not answered the readiness probe yet, so no caller has a result.
    assert not any(each.done() for each in [*callers, late])
    callers[0].cancel()
    await settle()
    model.gate.set()
    expected = (503, {"status": "not ready", "models": {"fast": "provider_unavailable"}})
    assert await asyncio.gather(*callers[1:]) == [expected, expected]
    # The second key may use none of the models.
    assert await late == (503, {"status": "not ready", "models": {}})
    assert await get(app, "/ready", HELD) == expected
    assert model.asked == 1


async def test_requests_without_a_key_cause_no_readiness_probe() -> None:
    model = Asked()
    model.gate.set()
    model.error = None
    app = create_app({"fast": model}, keys=KEYS)
    strangers: list[tuple[tuple[tuple[str, str], ...], int]] = [
        ((), 401),
        ((("authorization", "Bearer dg-wrong"),), 401),
        ((HELD, HELD), 400),
    ]
    for headers, expected in strangers:
        assert (await get(app, "/ready", *headers))[0] == expected
        assert (await get(app, "/health", *headers))[0] == 200
    assert model.asked == 0
    assert await get(app, "/ready", HELD) == (200, {"status": "ready"})
    assert model.asked == 1


@pytest.mark.parametrize(
    ("status", "expected"),
    [(502, "provider_unavailable"), (503, "provider_model_not_loaded"), (500, None)],
)
async def test_gateway_is_ready_only_if_the_route_of_its_model_answers(
    status: int, expected: str | None
) -> None:
    replies = [(200, b'{"data": [{"id": "m"}]}'), (404, b""), (status, b'"Loading model"')]
    transport = FixtureTransport(*[(code, {}, [body]) for code, body in replies])
    model = connect("m", base_url="http://127.0.0.1:9/v1", transport=transport)
    reply: dict[str, Any] = {"status": "ready"}
    if expected is not None:
        reply = {"status": "not ready", "models": {"fast": expected}}
    app = create_app({"fast": model})
    assert await get(app, "/ready") == (200 if expected is None else 503, reply)


async def test_failed_readiness_probe_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Asked()
    model.gate.set()
    model.error = ZeroDivisionError("an inner secret")
    app = create_app({"fast": model})
    monkeypatch.setattr("dragoman.gateway.models._READY_FOR", -1.0)
    assert await get(app, "/ready") == (
        503,
        {"status": "not ready", "models": {"fast": "provider_unavailable"}},
    )
    model.error = None
    assert (await get(app, "/ready"))[0] == 200
    # A readiness probe that is cancelled because the gateway closes reports no result, not even the previous one.
    model.gate.clear()
    left = asyncio.ensure_future(get(app, "/ready"))
    await settle()
    await app.state.service.models.close()
    assert await left == (503, {"status": "not ready", "models": {}})
    asked = model.asked
    model.gate.set()
    assert (await get(app, "/ready"))[0] == 200
    assert model.asked == asked + 1


@pytest.mark.parametrize("length", ["²", "9" * 5000, "-1", "+5", "1_0", " 5", ""])
async def test_invalid_content_length_is_a_client_error(length: str) -> None:
    app = create_app({"fast": Listed()})
    answer = await send(app, "openai", b"{}", headers={"content-length": length})
    assert answer.status == 400
    assert "content-length" in json.loads(answer.body)["error"]["message"]
