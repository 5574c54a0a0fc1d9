"""Test every route that real clients use, and the responses for routes that are not served."""

import contextlib
import json
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import ollama
import openai
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from dragoman.errors import AuthenticationError, UnavailableError
from dragoman.gateway.app import create_app
from dragoman.gateway.keys import Key, KeyRing, new_key
from dragoman.gateway.store import ResponseStore
from tests.listed import Listed, reply

from ..rows import read_table
from .serving import serving
from .upstream import bench

HELLO = {"contents": [{"parts": [{"text": "Hi"}]}]}


async def test_gateway_serves_the_gemini_routes() -> None:
    older = {"generate_content_request": {"model": "models/openai", **HELLO}}
    vertex = "projects/p/locations/l/publishers/google/models"
    async with bench() as gateway:
        for prefix in ("/v1beta/models", "/v1/models", f"/v1/{vertex}", f"/v1beta1/{vertex}"):
            status, _, said = await gateway.post(f"{prefix}/openai:generateContent", HELLO)
            assert status == 200
            assert said["candidates"][0]["content"]["parts"][0]["text"] == "Hello there"
            for body in (HELLO, older):
                status, _, said = await gateway.post(f"{prefix}/openai:countTokens", body)
                assert status == 200
                assert said["totalTokens"] > 0


async def test_gemini_stream_is_an_array_unless_sse_is_requested() -> None:
    errors = [UnavailableError("down", status=503), AuthenticationError("no", status=403)]
    model = Listed(reply("Bonjour"), reply("Bonjour"), *errors)
    async with serving(create_app({"m": model})) as url, aiohttp.ClientSession() as http:
        async with http.post(f"{url}/v1beta/models/m:streamGenerateContent", json=HELLO) as answer:
            assert answer.content_type == "application/json"
            chunks = json.loads(await answer.read())
        texts = [
            part.get("text", "")
            for chunk in chunks
            for part in chunk["candidates"][0]["content"]["parts"]
        ]
        assert "".join(texts) == "Bonjour"
        async with http.post(
            f"{url}/v1beta/models/m:streamGenerateContent?alt=sse", json=HELLO
        ) as answer:
            assert answer.content_type == "text/event-stream"
            await answer.read()
        for found in ((503, "UNAVAILABLE"), (403, "PERMISSION_DENIED")):
            path = f"{url}/v1beta/models/m:streamGenerateContent"
            async with http.post(path, json=HELLO) as answer:
                assert (answer.status, (await answer.json())["error"]["status"]) == found


async def test_gemini_route_accepts_the_key_in_headers_and_in_the_url() -> None:
    secret, digest = new_key()
    expired, other = new_key()
    ring = KeyRing([Key("a", digest), Key("b", other, expires=date.today() - timedelta(days=1))])
    path = "/v1beta/models/openai:generateContent"
    async with bench(keys=ring) as gateway:
        for headers, query, wanted in (
            ({"authorization": f"Bearer {secret}"}, "", 200),
            ({"x-goog-api-key": secret}, "", 200),
            ({}, f"?key={secret}", 200),
            ({}, f"?key={expired}", 401),
            ({}, f"?key={secret}&key={secret}", 401),
            ({}, "?key=", 401),
            ({"x-goog-api-key": "wrong"}, f"?key={secret}", 401),
        ):
            status, _, _ = await gateway.post(path + query, HELLO, **headers)
            assert status == wanted, (headers, query)
        status, _, _ = await gateway.post(f"/v1/chat/completions?key={secret}", {})
        assert status == 401  # only the Gemini wire accepts keys in URLs
    async with bench(keys=ring, url_keys=False) as gateway:
        status, _, _ = await gateway.post(f"{path}?key={secret}", HELLO)
        assert status == 401


async def test_a_key_in_the_url_is_not_logged(
    caplog: pytest.LogCaptureFixture, capfd: Any
) -> None:
    secret, digest = new_key()
    caplog.set_level("DEBUG")
    async with bench(keys=KeyRing([Key("a", digest)])) as gateway:
        for query in (f"?key={secret}", f"?key={secret}&alt=nonsense"):
            await gateway.post("/v1beta/models/openai:generateContent" + query, HELLO)
        _, _, said = await gateway.post(f"/v1beta/nothing?key={secret}", HELLO)
    assert secret not in caplog.text + json.dumps(said) + "".join(capfd.readouterr())


UNSERVED: list[tuple[str, dict[str, str], list[str], str]] = read_table("unserved_paths")


async def test_unserved_route_is_not_found_with_advice_in_the_words_of_the_wire() -> None:
    async with bench() as gateway:
        for path, headers, place, word in UNSERVED:
            status, answered, said = await gateway.post(path, {}, **headers)
            found = said
            for name in place:
                found = found[name]
            assert status == 404, said
            assert word in found, said
            assert len(answered["x-request-id"]) == 26
            if "request_id" in said:
                assert said["request_id"] == answered["request-id"] == answered["x-request-id"]
            if path == "/model/m/count-tokens":
                assert answered["x-amzn-errortype"] == "ResourceNotFoundException"
        status, _, said = await gateway.post("/v1/models", {})
        assert status == 405
        assert "does not take POST" in said["error"]["message"]


async def test_route_for_compaction_is_refused_for_its_own_reason_with_a_store(
    tmp_path: Path,
) -> None:
    with contextlib.closing(ResponseStore(tmp_path / "kept.db")) as store:
        app = create_app({"fast": Listed("x")}, store=store)
        async with (
            serving(app) as url,
            aiohttp.ClientSession() as http,
            http.post(f"{url}/v1/responses/compact", json={"model": "fast"}) as answer,
        ):
            assert answer.status == 404
            assert "are not compacted here" in await answer.text()


@pytest.mark.parametrize("model", ["fast", "tools/large"])
async def test_reply_names_the_model_as_the_client_knows_it(model: str) -> None:
    """The provider calls its model ``m``."""
    inner = Listed(reply("Bonjour"), reply("Bonjour"), reply("Bonjour"))
    asked = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}
    async with serving(create_app({model: inner})) as url, aiohttp.ClientSession() as http:
        for path, more in (
            ("/v1/chat/completions", {}),
            ("/v1/messages", {}),
            ("/api/chat", {"stream": False}),
        ):
            async with http.post(url + path, json={**asked, **more}) as answer:
                assert (await answer.json())["model"] == model


async def test_openai_paths_are_served_under_openai_too() -> None:
    async with (
        bench() as gateway,
        openai.AsyncOpenAI(base_url=f"{gateway.url}/openai/v1", api_key="x") as client,
    ):
        asked: Any = [{"role": "user", "content": "Hi"}]
        made = await client.chat.completions.create(model="gemini", messages=asked)
        assert made.choices[0].message.content == "Hello there"
        assert (await client.responses.create(model="gemini", input="Hi")).output_text
        assert "gemini" in [each.id async for each in client.models.list()]
        with pytest.raises(openai.NotFoundError, match="POST /openai/v1/nothing is not served"):
            await client.post("/nothing", cast_to=object)


async def test_page_that_is_not_served_is_named_as_the_client_asked_for_it() -> None:
    async with bench() as gateway, aiohttp.ClientSession(gateway.url) as http:
        for path in ("/v1beta/cachedContents", "/v1/cachedContents", "/openai/v1/nothing"):
            async with http.get(path) as answer:
                said = (await answer.json())["error"]
            assert said["message"].startswith(f"GET {path} is not served here")


async def test_ollama_generate_and_list_routes_work() -> None:
    async with bench() as gateway:
        client = ollama.AsyncClient(host=gateway.url, headers={"connection": "close"})
        assert (await client.generate(model="openai", prompt="Hi")).response == "Hello there"
        pieces = [
            piece.response
            async for piece in await client.generate("gemini", "Hi", stream=True, system="S")
        ]
        assert "".join(pieces) == "Hello there"
        assert (await client.generate("openai")).done_reason == "load"
        assert "openai" in [each.model for each in (await client.ps()).models]
        with pytest.raises(ollama.ResponseError, match="suffix"):
            await client.generate("openai", "a", suffix="b")


async def test_replies_have_a_request_id_and_rate_limit_headers() -> None:
    secret, digest = new_key()
    ring = KeyRing([Key("a", digest, requests_per_minute=5, tokens_per_minute=1000)])
    body = {"model": "openai", "messages": [{"role": "user", "content": "Hi"}]}
    async with bench(keys=ring) as gateway:
        status, headers, _ = await gateway.post(
            "/v1/chat/completions", body, authorization=f"Bearer {secret}"
        )
        assert status == 200
        assert headers["x-ratelimit-limit-requests"] == "5"
        assert headers["x-ratelimit-remaining-requests"] == "4"
        assert headers["x-ratelimit-remaining-tokens"] == "1000"
        assert headers["x-request-id"]
        status, headers, said = await gateway.post("/v1/messages", {}, **{"x-api-key": secret})
        assert status == 400
        assert headers["request-id"] == said["request_id"]
        status, headers, _ = await gateway.post("/v1/chat/completions", body)
        assert status == 401
        assert "x-ratelimit-limit-requests" not in headers
        assert headers["x-request-id"]


async def test_web_pages_of_allowed_origins_may_call_the_gateway() -> None:
    origin = "https://app.example"
    async with bench(cors=[origin]) as gateway, aiohttp.ClientSession() as http:
        asked = {
            "origin": origin,
            "access-control-request-method": "POST",
            "access-control-request-headers": "x-a",
        }
        async with http.options(f"{gateway.url}/v1/chat/completions", headers=asked) as answer:
            assert answer.status == 200
            assert answer.headers["access-control-allow-origin"] == origin
            assert answer.headers["access-control-allow-headers"] == "x-a"
        body = {"model": "openai", "messages": [{"role": "user", "content": "Hi"}]}
        status, headers, _ = await gateway.post("/v1/chat/completions", body, origin=origin)
        assert status == 200
        assert headers["access-control-allow-origin"] == origin
        status, headers, _ = await gateway.post(
            "/v1/chat/completions", body, origin="https://evil.example"
        )
        assert status == 403
        assert "access-control-allow-origin" not in headers
    with pytest.raises(ValueError, match="cors"):
        create_app({}, cors=["*"])


class AddHeader:
    """An ASGI middleware that adds a header to every reply."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def send_with_header(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-seen", b"yes")]
            await send(message)

        await self._app(scope, receive, send_with_header)


async def test_middleware_of_the_application_handles_chat_requests_too() -> None:
    """Chat paths skip Starlette's routing, but not a middleware that was added."""
    app = create_app({"m": Listed(reply("Hi"))})
    app.add_middleware(AddHeader)
    asked = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    async with (
        serving(app) as url,
        aiohttp.ClientSession() as http,
        http.post(f"{url}/v1/chat/completions", json=asked) as answer,
    ):
        assert answer.status == 200
        assert answer.headers.get("x-seen") == "yes"


async def test_gateway_can_be_mounted_in_another_application() -> None:
    """The paths of the gateway then begin with the path at which it is mounted."""
    gateway = create_app({"m": Listed(reply("Hi"), reply("Hi"))})
    app = Starlette(routes=[Mount("/models", gateway)])
    asked = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    async with serving(app) as url, aiohttp.ClientSession() as http:
        found = []
        for path in ("/models/v1/chat/completions", "/v1/chat/completions"):
            async with http.post(f"{url}{path}", json=asked) as answer:
                found.append(answer.status)
        assert found == [200, 404]
