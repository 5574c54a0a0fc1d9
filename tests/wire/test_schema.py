"""Names of response schemas, and the prompt texts that ask for output with a schema."""

import re
from typing import Any

import pytest

from dragoman.capabilities import Capabilities
from dragoman.messages import Request, RuntimeConfig, User
from dragoman.wire import CODECS
from dragoman.wire.schema import schema_name

TITLES = [
    ("Answer", "Answer"),
    ("An answer: yes/no", "An_answer_yes_no"),
    ("__x__", "x"),
    ("x" * 70, "x" * 64),
    ("snake-case_1", "snake-case_1"),
    ("_XRayX_", "XRayX"),
]


@pytest.mark.parametrize(("title", "name"), TITLES)
def test_schema_name_is_derived_from_its_title(title: str, name: str) -> None:
    assert schema_name({"title": title}) == name


@pytest.mark.parametrize("title", [None, "", "答え", 5])
def test_schema_without_a_usable_title_is_named_by_its_digest(title: Any) -> None:
    name = schema_name({"title": title, "type": "object"})
    assert re.fullmatch(r"schema_[0-9a-f]{12}", name)
    assert name == schema_name({"type": "object", "title": title}) != schema_name({"title": title})


@pytest.mark.parametrize("wire", CODECS)
def test_schema_instruction_ends_with_the_schema(wire: str) -> None:
    schema = {"type": "object", "additionalProperties": False}
    codec = CODECS[wire].connect("m", "https://a.test", {"structured": "prompt"}, Capabilities())
    request = Request([User("x")], response_schema=schema, config=RuntimeConfig(max_tokens=5))
    body = codec.encode(request).http.body.decode()
    assert r':\n{\"type\":\"object\",\"additionalProperties\":false}"' in body


def test_wires_keep_their_instruction_for_a_schema() -> None:
    # Another wording would invalidate existing cassettes and prompt caches.
    kept = {"anthropic": "nothing else: no code fences, no comment", "gemini": "nothing around it"}
    for wire in CODECS:
        codec = CODECS[wire].connect(
            "m", "https://a.test", {"structured": "prompt"}, Capabilities()
        )
        request = Request([User("x")], response_schema={}, config=RuntimeConfig(max_tokens=5))
        body = codec.encode(request).http.body.decode()
        assert kept.get(wire, "Reply with nothing but one JSON value") in body, wire
