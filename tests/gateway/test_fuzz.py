"""Test that no input causes status 500, a blocked event loop or a traceback in a reply."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, NamedTuple

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dragoman.gateway.app import create_app
from dragoman.gateway.keys import Key, KeyRing, hash_key
from dragoman.sim import ScriptedProvider
from tests import strategies as some
from tests.attacks.hold import run_watched
from tests.waiting import arrival

from .upstream import EXHAUSTIVE

KEY = "dg-key"
APP = create_app({"fast": ScriptedProvider("Hello.")}, check_host=False)
PLAIN = create_app({"fast": ScriptedProvider("Hello.")})
LOCKED = create_app(
    {"fast": ScriptedProvider("Hello.")}, keys=KeyRing([Key("ann", hash_key(KEY))])
)
SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", APP)
OPERATIONS = [found.ok() for found in SCHEMA.get_all_operations()]
BOUNDS = settings(
    max_examples=20 if EXHAUSTIVE else 3,
    phases=[Phase.generate],
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    database=None,
)


def check(response: Any) -> None:
    body = response.content
    assert response.status_code < 500 or response.status_code == 503, body[:300]
    assert b"Traceback" not in body
    assert b'File "' not in body
    if "application/json" in str(response.headers.get("content-type")):
        json.loads(body)


@pytest.mark.parametrize("operation", OPERATIONS, ids=[each.label for each in OPERATIONS])
@BOUNDS
@given(data=st.data())
def test_responses_match_the_openapi_description(operation: Any, data: st.DataObject) -> None:
    response = data.draw(operation.as_strategy()).call()
    check(response)
    described = SCHEMA.raw_schema["paths"][operation.path][operation.method.lower()]["responses"]
    assert str(response.status_code) in described or response.status_code in (404, 405)


PATHS = [
    "/v1/chat/completions",
    "/v1/messages",
    "/v1/responses",
    "/v1beta/models/fast:generateContent",
    "/api/chat",
    "/api/show",
]
BESIDE = [
    "/v1/responses/input_tokens",
    "/v1/messages/count_tokens",
    "/v1beta/models/fast:countTokens",
    "/v1/models/fast:streamGenerateContent",
    "/v1/projects/p/locations/l/publishers/google/models/fast:generateContent",
    "/api/generate",
    "/api/embed",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/conversations",
]
texts = st.text(max_size=8)
roles = st.sampled_from(["user", "assistant", "system", "tool", "model", "developer", ""])
kinds = st.sampled_from(
    ["text", "image", "image_url", "input_text", "tool_use", "tool_result", "function_call", ""]
)
parts = st.fixed_dictionaries(
    {},
    optional={
        "type": kinds,
        "text": texts | some.json_values,
        "source": some.json_values,
        "input": some.json_values,
    },
)
contents = texts | st.lists(parts | some.json_values, max_size=2)
messages = st.lists(
    st.fixed_dictionaries(
        {"role": roles},
        optional={"content": contents, "parts": st.lists(parts), "tool_calls": some.json_values},
    ),
    max_size=3,
)
bodies = st.fixed_dictionaries(
    {},
    optional={
        "model": st.sampled_from(["fast", "slow"]) | some.json_values,
        "messages": messages | some.json_values,
        "input": messages | texts | some.json_values,
        "contents": messages | some.json_values,
        "max_tokens": some.json_values | st.integers(0, 99),
        "stream": st.booleans() | some.json_values,
        "tools": some.json_values | st.lists(parts, max_size=2),
        "tool_choice": some.json_values,
        "response_format": some.json_values,
        "generationConfig": some.json_values,
        "system": contents,
    },
)


class Answer(NamedTuple):
    status_code: int
    headers: dict[str, str]
    content: bytes


async def send(app: Any, path: str, body: bytes, headers: dict[str, str]) -> Answer:
    """Send a request directly to the application, without sockets."""
    sent = {"host": "localhost", "content-type": "application/json", **headers}
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
    }
    messages: list[Any] = [{"type": "http.request", "body": body, "more_body": False}]
    said: list[Any] = []

    async def receive() -> Any:
        if messages:
            return messages.pop()
        return await asyncio.Event().wait()

    async def hear(message: Any) -> None:
        said.append(message)

    await arrival(app(scope, receive, hear), "the reply")
    start, *rest = said
    found = {name.decode(): value.decode() for name, value in start["headers"]}
    assert rest[-1].get("more_body", False) is False
    return Answer(start["status"], found, b"".join([message["body"] for message in rest]))


def test_every_route_has_an_openapi_description() -> None:
    described = SCHEMA.raw_schema["paths"]
    for route in PLAIN.routes:
        pattern = re.sub(r"\{\w+(:path)?\}", ".+", route.path)
        fitting = [each for path, each in described.items() if re.fullmatch(pattern, path)]
        methods = route.methods - {"HEAD"}
        assert route.path == "/openapi.json" or any(
            method.lower() in each for each in fitting for method in methods
        )


@pytest.mark.parametrize("path", [*PATHS, *BESIDE])
@given(body=bodies.map(lambda body: json.dumps(body).encode()) | st.binary(max_size=40))
@settings(BOUNDS, max_examples=200 if EXHAUSTIVE else 10)
def test_any_request_body_is_answered_or_rejected(path: str, body: bytes) -> None:
    response = run_watched(send(PLAIN, path, body, {}))
    check(response)
    assert response.status_code in (200, 400, 404), response.content


@pytest.mark.parametrize("path", PATHS)
@given(
    name=st.sampled_from(["authorization", "x-api-key", "x-goog-api-key"]),
    value=st.text("\t !~Bearbasic dg-ky", max_size=30),
)
@settings(BOUNDS, max_examples=10)
def test_no_header_bypasses_authentication(path: str, name: str, value: str) -> None:
    if value.strip().rpartition(" ")[2] == KEY:
        return
    response = run_watched(send(LOCKED, path, b"{}", {name: value}))
    check(response)
    assert response.status_code == 401
