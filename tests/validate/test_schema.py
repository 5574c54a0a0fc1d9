"""JSON Schemas are compiled, cached, and never followed out of the document."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from dragoman.errors import InvalidRequestError
from dragoman.validate import compile_schema, schema
from dragoman.validate.schema import first_error

# --- references out of the document -------------------------------------------------------------------


class Server(HTTPServer):
    hits = 0


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.hits += 1
        body = b'{"type": "integer"}'
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Silent."""


@pytest.fixture
def server() -> Iterator[Server]:
    """A real server that would answer, and counts who asks."""
    with Server(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield listening
        listening.shutdown()
        thread.join()


PLACES = ["$ref", "$dynamicRef"]


@pytest.mark.parametrize("keyword", PLACES)
def test_no_url_is_fetched(server: Server, keyword: str) -> None:
    url = f"http://127.0.0.1:{server.server_port}/integer.json"
    for planted in (
        {keyword: url},
        {"type": "object", "properties": {"a": {keyword: url}}},
        {"allOf": [{"$ref": "#/$defs/x"}], "$defs": {"x": {"anyOf": [{keyword: f"{url}#/definitions/y"}]}}},
        {"$id": url, "type": "object", "properties": {"a": {keyword: "other.json"}}},
        {"$schema": url, "type": "object"},
    ):
        with pytest.raises(InvalidRequestError, match=r"^tools\[0\]\.parameters is not a valid JSON Schema: ."):
            compile_schema(planted, "tools[0].parameters")
    assert server.hits == 0


def test_the_server_would_have_answered(server: Server) -> None:
    import urllib.request

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{server.server_port}/integer.json") as reply:
        assert json.load(reply) == {"type": "integer"}
    assert server.hits == 1


def test_no_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "integer.json"
    path.write_text('{"type": "integer"}')
    for uri in (path.as_uri(), f"{path.as_uri()}#", f"file://localhost{path}"):
        with pytest.raises(InvalidRequestError, match="references out of the document are not followed: file:"):
            compile_schema({"type": "object", "properties": {"a": {"$ref": uri}}}, "p")


def test_references_inside_the_document_are_followed() -> None:
    validator = compile_schema(
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "integer"}}}, "p"
    )
    assert first_error(validator, {"a": 1}) is None
    assert first_error(validator, {"a": "x"}) == '"x" is not of type "integer" at /a'


# --- schemas that are none ----------------------------------------------------------------------------


def nested(depth: int) -> dict[str, Any]:
    inner: dict[str, Any] = {"type": "object"}
    for _ in range(depth):
        inner = {"type": "object", "properties": {"a": inner}}
    return inner


INVALID: list[tuple[Any, str]] = [
    (True, "here must be a JSON Schema object, not bool"),
    ([], "here must be a JSON Schema object, not list"),
    ("{}", "here must be a JSON Schema object, not str"),
    (None, "here must be a JSON Schema object, not NoneType"),
    ({"type": "objekt"}, 'here is not a valid JSON Schema: "objekt" is not valid'),
    ({"type": "object", "required": "a"}, 'here is not a valid JSON Schema: "a" is not of type "array"'),
    ({"type": "string", "pattern": "("}, "here is not a valid JSON Schema: "),
    ({"$ref": "#/$defs/absent"}, "here is not a valid JSON Schema: "),
    ({"$schema": "http://example.com/mine"}, "here is not a valid JSON Schema: "),
    ({"enum": [object()]}, "here cannot be written as JSON: "),
    ({"enum": [{1, "a"}], "const": {1: 1, "a": 2}}, "here"),
    (nested(5000), "here cannot be written as JSON: "),
    (nested(400), "here is not a valid JSON Schema: "),
]


@pytest.mark.parametrize(("given", "message"), INVALID)
def test_invalid_schemas(given: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        compile_schema(given, "here")
    assert caught.value.message.startswith(message)
    assert "\n" not in caught.value.message


# --- compiling once -------------------------------------------------------------------------------------


def test_equal_schemas_are_compiled_once() -> None:
    one = compile_schema({"type": "object", "title": "once", "properties": {}}, "a")
    assert compile_schema({"properties": {}, "title": "once", "type": "object"}, "b") is one
    assert compile_schema({"type": "object", "title": "twice", "properties": {}}, "a") is not one


def test_the_cache_is_bounded() -> None:
    for number in range(600):
        compile_schema({"const": number}, "p")
    info = schema._compile.cache_info()
    assert info.currsize == info.maxsize == 512


def test_a_schema_that_changed_is_compiled_anew() -> None:
    changing: dict[str, Any] = {"type": "object", "required": ["a"]}
    assert first_error(compile_schema(changing, "p"), {}) is not None
    changing["required"] = []
    assert first_error(compile_schema(changing, "p"), {}) is None


# --- what is wrong ----------------------------------------------------------------------------------------

DEEP = {"type": "object", "properties": {"a/b": {"items": {"properties": {"~": {"type": "integer"}}}}}}
WRONG: list[tuple[Any, Any, str | None]] = [
    ({"type": "object"}, {}, None),
    ({"type": "object"}, [], '[] is not of type "object" at /'),
    ({"required": ["a"]}, {}, '"a" is a required property at /'),
    (DEEP, {"a/b": [{}, {"~": "x"}]}, '"x" is not of type "integer" at /a~1b/1/~0'),
    ({"type": "object"}, {"big": 10**40}, None),
    ({"properties": {"n": {"maximum": 5}}}, {"n": 10**40}, f"{10**40} is greater than the maximum of 5 at /n"),
]


@pytest.mark.parametrize(("given", "value", "message"), WRONG)
def test_first_error(given: Any, value: Any, message: str | None) -> None:
    assert first_error(compile_schema(given, "p"), value) == message


def test_only_the_first_error_is_told() -> None:
    validator = compile_schema({"properties": {"a": {"type": "null"}, "b": {"type": "null"}}}, "p")
    assert first_error(validator, {"a": 1, "b": 1}) in (
        '1 is not of type "null" at /a',
        '1 is not of type "null" at /b',
    )


def test_a_schema_that_refers_to_itself() -> None:
    validator = compile_schema({"type": "object", "properties": {"next": {"$ref": "#"}}}, "p")
    assert first_error(validator, {"next": {"next": {}}}) is None
    assert first_error(validator, {"next": {"next": 1}}) == '1 is not of type "object" at /next/next'
