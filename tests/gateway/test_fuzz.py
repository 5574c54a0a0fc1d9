"""Test that no input causes status 500, a blocked event loop or a traceback in a reply."""

import json
import random
import re
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import response_schema_conformance
from starlette.routing import Route

from dragoman.gateway.app import create_app
from dragoman.gateway.keys import Key, KeyRing, hash_key
from dragoman.sim import ScriptedProvider
from tests.attacks.gateway_app import post
from tests.attacks.hold import run_watched
from tests.attacks.mutations import mutate_json

from .test_app import get
from .translations import bodies
from .upstream import EXHAUSTIVE, PATHS

KEY = "dg-key"
APP = create_app({"fast": ScriptedProvider("Hello.")}, check_host=False)
PLAIN = create_app({"fast": ScriptedProvider("Hello.")})
LOCKED = create_app(
    {"fast": ScriptedProvider("Hello.")}, keys=KeyRing([Key("ann", hash_key(KEY))])
)
SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", APP)
OPERATIONS = [found.ok() for found in SCHEMA.get_all_operations()]
BOUNDS = settings(
    max_examples=20 if EXHAUSTIVE else 2,
    phases=[Phase.generate],
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    database=None,
)


def check(status: int, headers: Any, body: bytes) -> None:
    assert status < 500 or status == 503, body[:300]
    assert b"Traceback" not in body
    assert b'File "' not in body
    if "application/json" in str(headers.get("content-type")):
        json.loads(body)


@pytest.mark.exhaustive
@pytest.mark.parametrize("operation", OPERATIONS, ids=[each.label for each in OPERATIONS])
@BOUNDS
@given(data=st.data())
def test_responses_match_the_openapi_description(operation: Any, data: st.DataObject) -> None:
    case = data.draw(operation.as_strategy())
    # otherwise nearly every reply would be about an unknown model
    if isinstance(case.body, dict) and data.draw(st.booleans()):
        case.body["model"] = "fast"
    if "name" in case.path_parameters and data.draw(st.booleans()):
        case.path_parameters["name"] = "fast"
    response = case.call()
    check(response.status_code, response.headers, response.content)
    if str(response.headers.get("content-type")).startswith(("application/json", "['application")):
        case.validate_response(response, checks=[response_schema_conformance])
    described = SCHEMA.raw_schema["paths"][operation.path][operation.method.lower()]["responses"]
    assert str(response.status_code) in described or response.status_code in (404, 405)


TALK = {"model": "fast", "prompt": "Hi", "system": "S", "input": ["Hi"], "dimensions": 4}
# Bodies for every route but those of chats, which ``tests.attacks`` fuzzes.
SEEDS: dict[str, list[dict[str, Any]]] = {
    "/v1/responses/input_tokens": bodies("responses"),
    "/v1/messages/count_tokens": bodies("anthropic"),
    "/v1beta/models/fast:countTokens": bodies("gemini"),
    "/v1/models/fast:streamGenerateContent": bodies("gemini"),
    "/v1/projects/p/locations/l/publishers/google/models/fast:generateContent": bodies("gemini"),
    "/api/generate": [TALK],
    "/api/embed": [TALK],
    "/api/show": [TALK],
    "/v1/embeddings": [TALK],
    "/v1/rerank": [{"model": "fast", "query": "Hi", "documents": ["a", {"text": "b"}]}],
    "/v1/conversations": [{"items": [{"role": "user", "content": "Hi", "type": "message"}]}],
}


def test_every_route_has_an_openapi_description() -> None:
    described = SCHEMA.raw_schema["paths"]
    # OpenAPI has no form for a WebSocket, which is opened at the path of an operation.
    for route in [each for each in PLAIN.routes if isinstance(each, Route)]:
        pattern = re.sub(r"\{\w+(:path)?\}", ".+", route.path)
        fitting = [each for path, each in described.items() if re.fullmatch(pattern, path)]
        methods = route.methods - {"HEAD"}
        assert route.path == "/openapi.json" or any(
            method.lower() in each for each in fitting for method in methods
        )


KEYED = ("authorization", f"Bearer {KEY}")
FOREIGN = ("origin", "https://evil.test")


@pytest.mark.parametrize(
    ("app", "headers", "status"),
    [(LOCKED, [KEYED, KEYED], 400), (LOCKED, [], 401), (PLAIN, [FOREIGN], 403)],
    ids=["two keys", "no key", "another web page"],
)
async def test_rejections_of_every_page_are_described(
    app: Any, headers: list[tuple[str, str]], status: int
) -> None:
    for path, operations in SCHEMA.raw_schema["paths"].items():
        # these gateways have no store of responses and conversations, and no administration
        if "get" not in operations or re.match(
            "/(health|openapi|v1/responses|v1/conv|v1/admin)", path
        ):
            continue
        found, _ = await get(app, path.replace("{name}", "fast"), *headers)
        assert found == status, path
        assert str(status) in operations["get"]["responses"], path


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", SEEDS)
def test_any_request_body_is_answered_or_rejected(path: str) -> None:
    for number in range(200 if EXHAUSTIVE else 10):
        rng = random.Random(number)
        body = {"model": "fast", **rng.choice(SEEDS[path])}
        answer = run_watched(
            post(PLAIN, "", mutate_json(json.dumps(body).encode(), rng), path=path)
        )
        check(*answer)
        assert answer.status in (200, 400, 404), answer.body


@pytest.mark.parametrize("path", [each.format(model="fast") for each in PATHS.values()])
@given(
    name=st.sampled_from(["authorization", "x-api-key", "x-goog-api-key"]),
    value=st.text("\t !~Bearbasic dg-ky", max_size=30),
)
@settings(BOUNDS, max_examples=10)
def test_no_header_bypasses_authentication(path: str, name: str, value: str) -> None:
    if value.strip().rpartition(" ")[2] == KEY:
        return
    answer = run_watched(post(LOCKED, "", b"{}", path=path, headers={name: value}))
    check(*answer)
    assert answer.status == 401
