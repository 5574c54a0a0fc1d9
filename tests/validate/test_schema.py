"""Test that JSON Schemas are compiled and cached, and that references outside the document are not
followed.
"""

# ruff: noqa: SLF001 - the cache is private, but its size limit is documented

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
from tests import cpu

# --- schema references to other documents ------------------------------------------------------


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
        """Suppress the log of requests."""


@pytest.fixture
def server() -> Iterator[Server]:
    """Start a real server that answers every request and counts them."""
    with Server(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield listening
        listening.shutdown()
        thread.join()


PLACES = ["$ref", "$dynamicRef"]


@pytest.mark.parametrize("keyword", PLACES)
def test_checking_a_schema_fetches_no_url(server: Server, keyword: str) -> None:
    url = f"http://127.0.0.1:{server.server_port}/integer.json"
    for planted in (
        {keyword: url},
        {"type": "object", "properties": {"a": {keyword: url}}},
        {
            "allOf": [{"$ref": "#/$defs/x"}],
            "$defs": {"x": {"anyOf": [{keyword: f"{url}#/definitions/y"}]}},
        },
        {"$id": url, "type": "object", "properties": {"a": {keyword: "other.json"}}},
        {"$schema": url, "type": "object"},
    ):
        with pytest.raises(
            InvalidRequestError, match=r"^tools\[0\]\.parameters is not a valid JSON Schema: ."
        ):
            compile_schema(planted, "tools[0].parameters")
    assert server.hits == 0


def test_schema_server_of_these_tests_answers_requests(server: Server) -> None:
    import urllib.request

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{server.server_port}/integer.json") as reply:
        assert json.load(reply) == {"type": "integer"}
    assert server.hits == 1


def test_checking_a_schema_reads_no_file(tmp_path: Path) -> None:
    path = tmp_path / "integer.json"
    path.write_text('{"type": "integer"}')
    for uri in (path.as_uri(), f"{path.as_uri()}#", f"file://localhost{path}"):
        with pytest.raises(
            InvalidRequestError, match="references out of the document are not followed: file:"
        ):
            compile_schema({"type": "object", "properties": {"a": {"$ref": uri}}}, "p")


def test_references_inside_the_document_are_followed() -> None:
    validator = compile_schema(
        {
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/n"}},
            "$defs": {"n": {"type": "integer"}},
        },
        "p",
    )
    assert first_error(validator, {"a": 1}) is None
    assert first_error(validator, {"a": "x"}) == '"x" is not of type "integer" at /a'


# --- invalid schemas ---------------------------------------------------------------------------


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
    (
        {"type": "object", "required": "a"},
        'here is not a valid JSON Schema: "a" is not of type "array"',
    ),
    ({"type": "string", "pattern": "("}, "here is not a valid JSON Schema: "),
    ({"$ref": "#/$defs/absent"}, "here is not a valid JSON Schema: "),
    ({"$schema": "http://example.com/mine"}, "here is not a valid JSON Schema: "),
    ({"enum": [object()]}, "here cannot be written as JSON: "),
    ({"enum": [{1, "a"}], "const": {1: 1, "a": 2}}, "here"),
    (nested(5000), "here cannot be written as JSON: "),
    (nested(400), "here is not a valid JSON Schema: "),
]


@pytest.mark.parametrize(("given", "message"), INVALID)
def test_invalid_schemas_are_rejected(given: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        compile_schema(given, "here")
    assert caught.value.message.startswith(message)
    assert "\n" not in caught.value.message


# --- equal schemas are compiled once -----------------------------------------------------------


def test_equal_schemas_are_compiled_once() -> None:
    one = compile_schema({"type": "object", "title": "once", "properties": {}}, "a")
    assert compile_schema({"properties": {}, "title": "once", "type": "object"}, "b") is one
    assert compile_schema({"type": "object", "title": "twice", "properties": {}}, "a") is not one


def test_the_cache_of_compiled_schemas_is_limited() -> None:
    first = compile_schema({"const": "first"}, "p")
    assert compile_schema({"const": "first"}, "p") is first
    for number in range(20):
        compile_schema({"const": f"{number} " + "x" * 60_000}, "p")
        assert schema._cache.size <= 16 * 1024 * 1024
    assert compile_schema({"const": "first"}, "p") is not first
    size = schema._cache.size
    schema._cache.keep(b'{"const":"first"}', first)
    assert schema._cache.size == size, "what another thread kept meanwhile is not counted twice"
    long = {"const": "x" * 70_000}
    assert compile_schema(long, "p") is not compile_schema(long, "p"), (
        "one schema may not push out all others"
    )


def test_modified_schema_is_compiled_again() -> None:
    changing: dict[str, Any] = {"type": "object", "required": ["a"]}
    assert first_error(compile_schema(changing, "p"), {}) is not None
    changing["required"] = []
    assert first_error(compile_schema(changing, "p"), {}) is None


# --- descriptions of the first error -----------------------------------------------------------

DEEP = {
    "type": "object",
    "properties": {"a/b": {"items": {"properties": {"~": {"type": "integer"}}}}},
}
WRONG: list[tuple[Any, Any, str | None]] = [
    ({"type": "object"}, {}, None),
    ({"type": "object"}, [], '[] is not of type "object" at /'),
    ({"required": ["a"]}, {}, '"a" is a required property at /'),
    (DEEP, {"a/b": [{}, {"~": "x"}]}, '"x" is not of type "integer" at /a~1b/1/~0'),
    ({"type": "object"}, {"big": 10**40}, None),
    (
        {"properties": {"n": {"maximum": 5}}},
        {"n": 10**40},
        f"{10**40} is greater than the maximum of 5 at /n",
    ),
]


@pytest.mark.parametrize(("given", "value", "message"), WRONG)
def test_validation_error_is_described(given: Any, value: Any, message: str | None) -> None:
    assert first_error(compile_schema(given, "p"), value) == message


def test_only_the_first_validation_error_is_reported() -> None:
    validator = compile_schema({"properties": {"a": {"type": "null"}, "b": {"type": "null"}}}, "p")
    assert first_error(validator, {"a": 1, "b": 1}) in (
        '1 is not of type "null" at /a',
        '1 is not of type "null" at /b',
    )


def test_self_referencing_schema_is_compiled() -> None:
    validator = compile_schema({"type": "object", "properties": {"next": {"$ref": "#"}}}, "p")
    assert first_error(validator, {"next": {"next": {}}}) is None
    assert (
        first_error(validator, {"next": {"next": 1}}) == '1 is not of type "object" at /next/next'
    )


# --- schemas that are designed to take long ----------------------------------------------------


def doubling(levels: int, make: Any, start: Any = None) -> dict[str, Any]:
    """Return a schema with a chain of definitions; ``make`` builds each definition from a
    reference to the previous one.
    """
    definitions: dict[str, Any] = {"a0": start or {"type": "object"}}
    for level in range(1, levels + 1):
        definitions[f"a{level}"] = make({"$ref": f"#/$defs/a{level - 1}"})
    return {"type": "object", "$ref": f"#/$defs/a{levels}", "$defs": definitions}


def through_parts(inner: Any) -> dict[str, Any]:
    return {"properties": {"x": inner}, "allOf": [{"properties": {"x": inner}}]}


def unevaluated(levels: int) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "object"}
    for _ in range(levels):
        made = {"allOf": [made], "unevaluatedProperties": {"type": "object"}}
    return {"type": "object", **made}


PERCENT = doubling(40, lambda inner: {"allOf": [inner, inner]})
PERCENT = json.loads(json.dumps(PERCENT).replace("#/$defs", "#/%24defs"))
ANCHORED = doubling(40, lambda inner: {"allOf": [inner, inner]})
ANCHORED["$defs"] = {name: {"$anchor": name, **value} for name, value in ANCHORED["$defs"].items()}
ANCHORED = json.loads(json.dumps(ANCHORED).replace("#/$defs/", "#"))
NAMED = {"$id": "http://x/y", **doubling(40, lambda inner: {"anyOf": [inner, inner]})}
NAMED = json.loads(json.dumps(NAMED).replace("#/$defs", "http://x/y#/$defs"))
HIDDEN = {"const": doubling(40, lambda inner: {"allOf": [inner, inner]}), "$ref": "#/const"}
HIDDEN = json.loads(json.dumps(HIDDEN).replace("#/$defs", "#/const/$defs"))
TOO_MUCH = {
    "allOf": doubling(40, lambda inner: {"allOf": [inner, inner]}),
    "oneOf": doubling(40, lambda inner: {"oneOf": [inner, inner]}),
    "anyOf": doubling(40, lambda inner: {"anyOf": [inner, inner]}),
    "not": doubling(40, lambda inner: {"allOf": [inner], "not": {"not": inner}}),
    "if": doubling(40, lambda inner: {"if": inner, "then": inner, "else": False}),
    "dependentSchemas": doubling(
        40, lambda inner: {"allOf": [inner], "dependentSchemas": {"x": inner}}
    ),
    "dependencies": doubling(
        40, lambda inner: {"allOf": [inner], "dependencies": {"x": inner, "y": ["x"]}}
    ),
    "properties": doubling(40, through_parts),
    "patterns": doubling(40, lambda inner: {"patternProperties": {"x": inner, "^x": inner}}),
    "items": doubling(40, lambda inner: {"items": inner, "contains": inner}),
    "a list of items": doubling(
        40, lambda inner: {"prefixItems": [inner], "allOf": [{"prefixItems": [inner]}]}
    ),
    "unevaluated": unevaluated(18),
    "percent": PERCENT,
    "anchors": ANCHORED,
    "identified": NAMED,
    "in a constant": HIDDEN,
    "many": {"allOf": [{}] * 10_001},
}
LOOPS = {
    "itself": {"$ref": "#"},
    "itself among others": {"type": "object", "allOf": [{"$ref": "#"}, {"type": "object"}]},
    "two": {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"anyOf": [{"$ref": "#/$defs/a"}]}},
    },
    "dynamic": {"$dynamicAnchor": "x", "$dynamicRef": "#x"},
    "recursive": {"$recursiveRef": "#"},
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_schemas_that_expand_too_far_are_rejected(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="expand to more than 10000 paths"):
        compile_schema(TOO_MUCH[name], "here")


@pytest.mark.parametrize("name", LOOPS)
def test_dangling_references_are_rejected(name: str) -> None:
    with pytest.raises(
        InvalidRequestError, match="leads back to itself without going into the value"
    ):
        compile_schema(LOOPS[name], "here")


def test_schemas_that_are_too_deep_or_too_long_are_rejected() -> None:
    with pytest.raises(InvalidRequestError, match="nested more than 128 levels deep"):
        compile_schema({"const": json.loads("[" * 200 + "]" * 200)}, "here")
    with pytest.raises(InvalidRequestError, match="longer than 262144 bytes"):
        compile_schema({"const": "x" * 300_000}, "here")
    for crowd in (
        {"$defs": {f"a{n}": {"$id": f"http://x/{n}"} for n in range(20)}},
        {"$defs": {f"a{n}": {"$anchor": "x"} for n in range(20)}, "$ref": "#x"},
    ):
        with pytest.raises(InvalidRequestError, match="more than 16 identifiers"):
            compile_schema(crowd, "here")
    with pytest.raises(InvalidRequestError, match="not a valid JSON Schema"):
        compile_schema({"$id": "http://[", "$ref": "//["}, "here")


# Recursive schemas with alternatives, as used for the grammar of a language; a naive check would
# take exponential time.
EXPRESSION = {
    "type": "object",
    "anyOf": [
        {
            "properties": {"op": {"const": op}, "x": {"$ref": "#"}, "y": {"$ref": "#"}},
            "required": ["op"],
        }
        for op in ("add", "sub", "mul", "div")
    ],
}
BOTH = {
    "type": "object",
    "allOf": [{"properties": {"x": {"$ref": "#"}}}, {"properties": {"x": {"$ref": "#"}}}],
}


def chain(levels: int, end: Any, **others: Any) -> Any:
    value = end
    for _ in range(levels):
        value = {**others, "x": value}
    return value


@pytest.mark.parametrize("recursive", [EXPRESSION, BOTH], ids=["expression", "both"])
@pytest.mark.parametrize("levels", [3, 40, 200])
@pytest.mark.parametrize("end", [{"op": "add"}, 1, {"x": 1}])
def test_recursive_schemas_are_checked_quickly(
    recursive: dict[str, Any], levels: int, end: Any
) -> None:
    compiled = compile_schema(recursive, "p")
    value = chain(levels, end, op="add")
    with cpu.spending() as spent:
        wrong = first_error(compiled, value)
    assert spent.units < cpu.QUARTER_SECOND
    assert (wrong is None) is (end == {"op": "add"})
    if levels == 3 and end == 1 and recursive is BOTH:
        assert wrong == '1 is not of type "object" at /x/x/x'
    if levels >= 40 and wrong is not None:
        assert wrong == "it does not satisfy the schema, and is nested too deeply to say where"


def test_values_too_large_for_a_schema_are_rejected_without_checking() -> None:
    compiled = compile_schema(
        {"type": "object", "properties": {"a": {"items": {"allOf": [{}] * 9_000}}}}, "p"
    )
    assert compiled.paths > 9_000
    assert first_error(compiled, {"a": [1] * 10}) is None
    assert (
        first_error(compiled, {"a": [1] * 1_000})
        == "it is too large to be checked against this schema"
    )


def test_deeply_nested_values_are_invalid() -> None:
    compiled = compile_schema({"type": "object", "properties": {"city": {"type": "string"}}}, "p")
    for levels in (255, 300, 5000):
        value: Any = []
        for _ in range(levels):
            value = [value]
        assert first_error(compiled, {"city": value}) is not None
    assert first_error(compiled, {"city": 10**5000}) is not None


def test_references_resolve_as_in_the_jsonschema_library() -> None:
    for given in (
        {
            "$ref": "#/properties/a/items/0",
            "properties": {"a": {"items": [{"type": "object"}]}},
            "$schema": DRAFT_7,
        },
        {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "object"}}},
        {"$ref": "#x", "$defs": {"a": {"$anchor": "x", "type": "object"}}},
        {"$ref": "inner", "$defs": {"a": {"$id": "inner", "type": "object"}}},
        {"$schema": DRAFT_4, "$ref": "#x", "definitions": {"a": {"id": "#x", "type": "object"}}},
        {"$ref": "#/$defs/yes", "$defs": {"yes": True}, "type": "object"},
        {"$ref": "https://json-schema.org/draft/2020-12/schema"},
        {"properties": {"$ref": {"type": "string"}}},
    ):
        assert first_error(compile_schema(given, "p"), {}) is None
    for dangling in ("#/$defs/a/0", "#/$defs/b/9", "#/$defs/b/x", "#nowhere", "#/$defs/b/0/c"):
        with pytest.raises(
            InvalidRequestError, match="references out of the document are not followed"
        ):
            compile_schema({"$ref": dangling, "$defs": {"a": 5, "b": [1]}}, "p")


DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"


@pytest.mark.parametrize(
    ("draft", "is_checked"),
    [
        (None, False),
        ("https://json-schema.org/draft/2020-12/schema", False),
        ("https://json-schema.org/draft/2019-09/schema", False),
        ("http://json-schema.org/draft-07/schema#", True),
        ("http://json-schema.org/draft-06/schema#", True),
        ("http://json-schema.org/draft-04/schema#", True),
    ],
)
def test_format_is_checked_by_drafts_that_require_it(draft: str | None, is_checked: bool) -> None:
    named = {} if draft is None else {"$schema": draft}
    schema = compile_schema({"type": "string", "format": "date", **named}, "schema")
    assert (first_error(schema, "soon") is not None) == is_checked
    assert first_error(schema, "2026-11-19") is None
