"""A request that is decoded and encoded again equals the original, except for explained
differences.
"""

from typing import Any

import pytest
from bench.requests import PAGE, compare, normalise, reason_of, report, with_table

from tests.rows import read_table

TOOL = {
    "type": "object",
    "properties": {"z": {"type": "string"}, "a": {"type": "string"}},
    "required": ["z"],
}
OWN: dict[str, tuple[str, dict[str, Any], str]] = dict(read_table("request_bodies"))


UNNAMED = {
    "type": "json_schema",
    "json_schema": {"name": "", "schema": {**TOOL, "required": ["z", "a"]}, "strict": True},
}


@pytest.mark.parametrize(("wire", "body", "path"), OWN.values(), ids=OWN)
def test_decoding_and_encoding_a_request_gives_the_same_json(
    wire: str, body: dict[str, Any], path: str
) -> None:
    assert compare(wire, body, path) == ("same", ())


def test_comparison_finds_a_changed_request() -> None:
    wire, body, path = OWN["messages"]
    changed = {
        **body,
        "metadata": {"user_id": "u"},
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    }
    assert compare(wire, changed, path) == ("reported", ("parallel_tool_calls_dropped",))
    assert compare("openai", {**OWN["chat"][1], "response_format": UNNAMED}).places == (
        "response_format.json_schema.name",
    )
    assert (
        compare("openai", {"model": "m", "messages": [{"role": "user", "content": 5}]}).verdict
        == "refused"
    )
    wire, body, path = OWN["turns"]
    point = {"cachePoint": {"type": "default"}}
    marked = {**body, "toolConfig": {"tools": [*body["toolConfig"]["tools"], point]}}
    assert compare(wire, marked, path) == ("reported", ("cache_point_dropped",))
    assert normalise("openai", {"n": 1, "messages": []}) == {"messages": []}


# For each wire: of the requests that our classes can represent, the minimum share that is encoded
# again without a difference, and the minimum number. The number is needed because representing
# fewer requests would raise the share.
LEAST = {
    "openai": (0.97, 3600),
    "anthropic": (0.96, 900),
    "gemini": (0.91, 725),
    "responses": (0.93, 1000),
    "ollama": (0.97, 75),
    "cohere": (0.90, 80),
    "bedrock": (0.94, 190),
}


@pytest.mark.recordings
def test_re_encoded_recorded_requests_differ_only_where_explained() -> None:
    found = report()
    assert set(found) == set(LEAST)
    for wire, share in found.items():
        least, number = LEAST[wire]
        assert share.same / share.expressed >= least, (wire, share.differing)
        assert share.same >= number, (wire, share.reported, share.refused)
        assert [place for place in share.differing if reason_of(place) is None] == [], wire
    assert PAGE.read_text() == with_table(PAGE.read_text(), found), (
        "run: python -m bench.requests --write"
    )
