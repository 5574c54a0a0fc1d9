"""The page of scoreboards: what passed, what failed and why."""

import base64
import json
import random
from pathlib import Path
from typing import Any

import pytest
from scoreboards import open_responses
from scoreboards.__main__ import PAGE, renew
from scoreboards.aimock import CONTROLS as AIMOCK_CONTROLS
from scoreboards.aimock import FIXTURES, damage_fixtures
from scoreboards.aws import try_stream
from scoreboards.bfcl import (
    CONTROLS,
    WIRES,
    Case,
    Trip,
    convert,
    read_calls,
    try_case,
    try_controls,
)
from scoreboards.bfcl_gateway import CONTROLS as GATEWAY_CONTROLS
from scoreboards.bfcl_gateway import send_all
from scoreboards.board import Board, judge
from scoreboards.event_streams import WPT, read_events
from scoreboards.http_messages import answering, read_vectors, try_reply, try_request
from scoreboards.json_schemas import read_suite, try_verdict
from scoreboards.json_texts import try_complete, try_partial
from scoreboards.litellm_calls import REPLY_DAMAGES
from scoreboards.litellm_calls import Run as LiteLLMRun
from scoreboards.litellm_calls import Server as LiteLLMServer
from scoreboards.litellm_calls import fill as fill_calls
from scoreboards.mcp import find_scenarios, read_outcome
from scoreboards.otel import EXPECTED, fill, record
from scoreboards.otel import try_controls as try_names
from scoreboards.otel_names import list_names

import dragoman as d
from dragoman.transport import HttpTransport, Timeouts
from dragoman.transport.serving import serving
from dragoman.wire.codec import HttpRequest
from dragoman.wire.eventstream import encode_message


def test_section_lists_failures_with_their_reasons() -> None:
    board = Board("b", "Title", "About.", {"suite": "1.2"}, expected={("b", "*"): "no login yet"})
    board.cells = {("a", "x"): "", ("b", "x"): "login failed", ("c", "x"): "a login of b fails"}
    shown = board.show()
    assert "**1 of 3 passed.**" in shown
    assert "Run with suite 1.2." in shown
    assert "- x: a\n" in shown
    assert "| b | x | no login yet |" in shown
    assert "| c | x | not expected: a login of b fails |" in shown
    assert board.surprises == ["c, x: a login of b fails"]


def test_reason_that_explains_no_failure_and_control_that_misses_are_reported() -> None:
    board = Board("b", "Title", "About.", expected={("a", "x"): "no login yet"})
    board.cells = {("a", "x"): ""}
    board.controls = {"noticed": (3, 3), "missed": (2, 3), "never tried": (0, 0)}
    assert board.surprises == [
        "a, x: no failure has this reason any longer",
        "control 'missed': noticed 2 of 3 times",
        "control 'never tried': noticed 0 of 0 times",
    ]


@pytest.mark.parametrize(
    ("losses", "outcome"),
    [
        ([], "tools[1].parameters: sent 'a', arrived 'b'"),
        (["tools[1].parameters.items"], "reported"),
        (["tools[1]"], "reported"),
        (["tools[10].parameters", "config.seed", "tools[1].description"],
         "tools[1].parameters: sent 'a', arrived 'b'"),
    ],
)  # fmt: skip
def test_reported_loss_excuses_only_a_change_at_its_place(losses: list[str], outcome: str) -> None:
    parts = {"tools[0].parameters": ("c", "c"), "tools[1].parameters": ("a", "b")}
    assert judge(parts, losses) == outcome
    assert judge({"tools[0]": ("c", "c")}, losses) == "equal"


def test_suite_that_cannot_be_run_is_reported() -> None:
    board = Board("b", "Title", "About.", missing="npm is not installed")
    assert board.surprises == ["npm is not installed"]
    assert "Not run: npm is not installed" in board.show()


def test_outcomes_of_the_mcp_suite_are_read() -> None:
    listing = "Client scenarios (test against a client):\n  - a/b [2025-06-18,extension]\n\nOther:"
    assert find_scenarios(listing) == [("a/b", "2025-06-18"), ("a/b", "extension")]
    assert read_outcome("s", "Passed: 2/2, 0 failed\n\x1b[32mOVERALL: PASSED\x1b[0m") == ""
    skipped = (
        "[token  ] SUCCESS x\n[schema-$id ] \x1b[33mSKIPPED\x1b[0m y\nPassed: 1/1, 0 failed\n"
    )
    assert read_outcome("s", f"{skipped}OVERALL: PASSED") == "s: skipped schema-$id"
    assert read_outcome("s", "Passed: 0/0, 0 failed\nOVERALL: PASSED") == "s: no check was made"
    failed = "[token  ] FAILURE x\nPassed: 1/2, 1 failed\nOVERALL: FAILED"
    assert read_outcome("s", failed) == "s: token"
    assert read_outcome("s", "crash") == "s: no result: crash"


def test_cases_of_bfcl_are_read_and_sent() -> None:
    types = {"dict": "object", "float": "number"}
    given = {"type": "dict", "properties": {"type": {"type": "float", "default": 1.5}}}
    schema = {"type": "object", "properties": {"type": {"type": "number", "default": 1.5}}}
    assert convert(given, types) == schema
    calls = read_calls([{"math.sum": {"type": [2.5, 3], "unused": ["", 1]}}])
    assert [(call.name, call.arguments) for call in calls] == [("math.sum", {"type": 2.5})]
    case = Case("1", "Add.", [d.Tool("math.sum", "", parameters=schema)], calls)
    for wire in ("openai", "cohere", "bedrock"):
        assert {outcome for _, outcome in try_case(Trip(wire), case)} == {"equal"}


@pytest.mark.parametrize("name", CONTROLS)
def test_damage_to_each_compared_part_of_an_exchange_is_noticed(name: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "number", "default": 1.5}}}
    calls = [d.ToolCall("call_0", "sum", {"a": 2.5}), d.ToolCall("call_1", "sum", {"a": 3.5})]
    case = Case("1", "Add.", [d.Tool("sum", "Add.", parameters=schema)], calls)
    assert try_controls([case])[name] == (1, 1)


async def test_cases_of_bfcl_go_through_the_gateway() -> None:
    schema = {"type": "object", "properties": {"type": {"type": "number", "default": 1.5}}}
    call = d.ToolCall("c", "math.sum", {"type": 2.5})
    case = Case("1", "Add.", [d.Tool("math.sum", "Add.", parameters=schema)], [call])
    counts, wrong = await send_all([case] * 49)
    assert set(wrong.values()) == {""}
    for damage in GATEWAY_CONTROLS.values():
        damaged, _ = await send_all([case] * 7, damage)
        assert {outcome for _, _, outcome in damaged} == {"changed"}
    assert {(wire, outcome) for wire, _, outcome in counts} == {(wire, "equal") for wire in WIRES}
    assert counts.total() == 49


@pytest.mark.parametrize("name", WPT)
def test_format_tests_of_event_streams_pass(name: str) -> None:
    text, wanted = WPT[name]
    for seed in (None, 1, 2, 3):
        rng = None if seed is None else random.Random(seed)
        assert [data for _, data in read_events(text.encode(), rng)] == wanted


def test_run_of_one_suite_leaves_the_sections_of_the_others() -> None:
    page = PAGE.read_text("utf-8")
    assert renew(page, []) == page
    made = renew(page, [Board("mcp", "MCP conformance", "About.", {"suite": "1.2"})])
    assert [line for line in made.split("\n") if line.startswith("## ")] == [
        line for line in page.split("\n") if line.startswith("## ")
    ]
    assert "with suite 1.2." in made
    assert "tools_call" not in made


VECTORS = r"""
## Chunked
<!-- meta={"type": "response"} -->
```http
HTTP/1.1 200 OK
Transfer-Encoding: chunked

2
o\
k
0


```
```log
off=0 message begin
off=43 headers complete status=200 v=1/1 flags=208 content_length=0
off=46 len=1 span[body]="o"
off=47 len=1 span[body]="k"
off=52 message complete
```
## Lines
<!-- meta={"type": "response"} -->
```http
HTTP/1.1 103 Early Hints

HTTP/1.1 200 OK

a\n\
b
```
```log
off=0 message begin
off=30 headers complete status=103 v=1/1 flags=0 content_length=0
off=30 message complete
off=30 reset
off=30 message begin
off=50 headers complete status=200 v=1/1 flags=0 content_length=0
off=50 len=1 span[body]="a"
off=51 len=1 span[body]=lf
off=52 len=1 span[body]="b"
```
## Cut off
```http
HTTP/1.1 200 OK
Content-Length: 5

a
```
```log
off=0 message begin
off=40 headers complete status=200 v=1/1 flags=20 content_length=5
off=40 len=1 span[body]="a"
```
## Two lengths
```http
HTTP/1.1 200 OK
Content-Length: 1
Content-Length: 2

a
```
```log
off=0 message begin
off=40 error code=4 reason="Content-Length already present"
```
## Lenient
<!-- meta={"type": "response-lenient-all"} -->
```http
HTTP/1.1 200 OK
```
```log
off=0 message begin
```
"""


async def test_vectors_of_llhttp_are_read_and_tried(tmp_path: Path) -> None:
    (tmp_path / "response").mkdir()
    (tmp_path / "response" / "a.md").write_text(VECTORS)
    chunked, lines, cut, two = read_vectors(tmp_path, "response")
    assert chunked.name == "a: Chunked"
    assert chunked.data.endswith(b"chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n")
    assert chunked.read_reply() == (200, b"ok")
    assert lines.read_reply() == (200, b"a\nb")
    assert cut.read_reply() is None
    assert not cut.is_refused
    assert two.is_refused
    for vector in (chunked, lines, cut, two):
        assert await try_reply(vector, vector.data) == "", vector.name
    assert "read as 200" in await try_reply(lines, lines.data + b"!")
    assert "read as 200" in await try_reply(cut, lines.data)
    assert "read as 200" in await try_reply(two, lines.data)
    assert "InvalidResponseError" in await try_reply(lines, two.data)
    async with answering(b"HTTP/1.1 200 OK\r\n\r\n") as url:
        address = url.removesuffix("/x")
        assert await try_request(address, b"GET / HTTP/1.1\r\n\r\n") == "answered with 200"


def test_verdicts_of_json_schema_are_compared(tmp_path: Path) -> None:
    cases = [
        {"description": "small", "schema": {"maximum": 3}, "tests": [
            {"description": "2", "data": 2, "valid": True},
            {"description": "4", "data": 4, "valid": False},
        ]},
        {"description": "none", "schema": False, "tests": [{"description": "1", "data": 1}]},
        {"description": "remote", "schema": {"$ref": "http://a/b"}, "tests": [
            {"description": "1", "data": 1, "valid": True}
        ]},
    ]  # fmt: skip
    folder = tmp_path / "draft7" / "optional"
    folder.mkdir(parents=True)
    (folder / "maximum.json").write_text(json.dumps(cases))
    low, high, remote = read_suite(tmp_path, "draft7")
    assert high.name == "optional/maximum: small / 4"
    assert [try_verdict(low), try_verdict(high)] == ["", ""]
    assert try_verdict(remote).startswith("refused: ")
    assert try_verdict(low, {"not": {}}) == "refused though valid"
    assert try_verdict(high, {}) == "accepted though invalid"


@pytest.mark.parametrize(
    ("name", "text", "complete", "partial"),
    [
        ("y_a", '{"a": [1, "b"]}', "", ""),
        ("y_a", '{"a": [1, "b"]', "refused", "read as {'a': [1, 'b']}"),
        ("n_a", "[1]x", "", "complete as [1]"),
        ("n_a", "[1]", "read as [1]", "complete as [1]"),
        ("n_a", "[1,", "", ""),
        ("i_a", "[1e999]", "", ""),
    ],
)
def test_texts_of_json_are_tried(name: str, text: str, complete: str, partial: str) -> None:
    assert try_complete(name, text) == complete
    assert try_partial(name, text) == partial


def test_messages_of_event_streams_are_compared() -> None:
    data = encode_message({":event-type": "a"}, b'{"x":1}')
    message = {"payload": base64.b64encode(b'{"x":1}').decode(), "headers": [":event-type"]}
    refused = {"error": "ChecksumMismatch"}
    damaged = data[:-1] + bytes([data[-1] ^ 1])
    for size in (1, 3, len(data)):
        assert try_stream(message, data, size) == ""
        assert "checksum" in try_stream(message, damaged, size)
        assert try_stream(refused, damaged, size) == ""
        assert try_stream(refused, data, size) == "accepted, not ChecksumMismatch"
    assert try_stream({**message, "payload": ""}, data, 1).startswith("read as")


async def test_each_name_of_opentelemetry_is_recorded_or_left_out_for_a_reason() -> None:
    """A name that a new release of the packages adds fails until it is recorded, or listed."""
    names = list_names()
    recorded = await record()
    board = Board("otel", "OpenTelemetry", "", expected=EXPECTED)
    fill(board, names, recorded)
    assert board.surprises == []
    fill(board, {"gen_ai.new": "attribute"}, recorded - {"gen_ai.tool.name"})
    fill(board, names, recorded - {"gen_ai.tool.name"})
    assert board.surprises == [
        "gen_ai.tool.name, attribute: not recorded", "gen_ai.new, attribute: not recorded",
    ]  # fmt: skip


async def test_opentelemetry_name_that_is_recorded_under_another_one_is_noticed() -> None:
    names = list_names()
    found = try_names(names, await record())
    assert set(found) == {f"{kind} recorded under another name" for kind in names.values()}
    assert all(noticed == tried > 0 for noticed, tried in found.values())
    # a damage is not noticed by reasons that explain nothing
    assert try_names({"gen_ai.tool.name": "attribute"}, {"gen_ai.tool.name"}) == {
        "attribute recorded under another name": (0, 1)
    }


@pytest.mark.parametrize(
    ("control", "fault"),
    [
        ("status changed", "the status is incomplete"),
        ("model renamed", "the model is xopenai"),
        ("items of another type", "the output has ['reasoning']"),
        ("arguments not streamed", "the stream has ["),
    ],
)
async def test_damage_to_replies_of_open_responses_is_noticed(control: str, fault: str) -> None:
    name = "streamed tool call"
    sent = await open_responses.collect([name])
    assert isinstance(sent[name, "openai"], list)
    damaged = await open_responses.collect([name], open_responses.CONTROLS[control].damage)
    assert str(damaged[name, "openai"]).startswith(fault)


@pytest.mark.parametrize(
    ("control", "name", "before", "after"),
    [
        ("field of the reply renamed", "text", '"created_at"', '"made_at"'),
        ("field of an item renamed", "text", '"text"', '"x_text"'),
        ("unknown type of event", "stream", "output_item.added", "thing.added"),
        ("text changed", "text", "Ahoy", "Ohay"),
        ("arguments changed", "tool call", "San Francisco", "Oslo"),
        ("reply cut at its limit", "text", '"reason"', '"reason": "max_output_tokens"'),
        ("tokens of the prompt removed", "text", '"input_tokens"', '"input_tokens": 0'),
    ],
)
async def test_damage_to_replies_of_open_responses_changes_what_it_names(
    control: str, name: str, before: str, after: str
) -> None:
    """The type checker and the client that notice these are programs of others."""
    async with open_responses.gateway() as url:
        sent = json.dumps(await open_responses.exchange(url, name, "openai"))
    async with open_responses.gateway(open_responses.CONTROLS[control].damage) as url:
        damaged = json.dumps(await open_responses.exchange(url, name, "openai"))
    assert before in sent or before == '"reason"'
    assert after not in sent
    assert after in damaged


@pytest.mark.parametrize("name", AIMOCK_CONTROLS)
def test_damage_to_fixtures_of_aimock_changes_responses_and_nothing_else(name: str) -> None:
    damaged = damage_fixtures(AIMOCK_CONTROLS[name].damage)
    assert [each["match"] for each in damaged] == [each["match"] for each in FIXTURES]
    changed = [
        {key for key in before["response"] if before["response"][key] != after["response"][key]}
        for before, after in zip(FIXTURES, damaged, strict=True)
    ]
    fields = {
        "text changed": "content", "thinking changed": "reasoning", "status changed": "status",
        "reason of the end changed": "finishReason", "arguments changed": "toolCalls",
        "call removed": "toolCalls",
    }  # fmt: skip
    assert set().union(*changed) == {fields[name]}


async def send(server: LiteLLMServer, path: str, request: dict[str, Any]) -> tuple[int, bytes]:
    """Send a request to the server of the board as a client does."""
    transport = HttpTransport(proxy=None)
    async with serving(server) as url:
        body = json.dumps(request).encode()
        reply = await transport.exchange(
            HttpRequest("POST", f"{url}{path}", {}, body), {}, Timeouts()
        )
    await transport.close()
    return reply.status, reply.body


async def test_server_for_calls_of_litellm_keeps_requests_and_damages_replies() -> None:
    server = LiteLLMServer()
    request = {"model": "sim-1", "messages": [{"role": "user", "content": "Hi"}]}
    chat = "v1/chat/completions"
    _, whole = await send(server, f"/none/a/{chat}", request)
    _, damaged = await send(server, f"/text-changed/a/{chat}", request)
    status, _ = await send(server, f"/none/status-429/{chat}", request)
    _, stream = await send(server, f"/none/b/{chat}", {**request, "stream": True})
    assert b"Hello." in whole
    assert b"Hullo." in damaged
    assert status == 429
    assert stream.endswith(b"data: [DONE]\n\n")
    assert server.requests["none"]["a"] == [(chat, request)]


def test_calls_of_litellm_are_compared_and_each_damage_is_counted() -> None:
    """A damage that changes nothing of a result counts as missed."""
    request = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "seed": 1}
    sent = {"none": {"a": [("v1/chat/completions", request)]}}
    theirs = {"none": {"a": "Hello."}, **{name: {"a": "Hullo."} for name in REPLY_DAMAGES}}
    board = Board("x", "X", "")
    fill_calls(board, LiteLLMRun(theirs, sent), LiteLLMRun(theirs, sent))
    assert not any(board.cells.values())
    assert board.controls["text changed"] == (1, 1)
    assert board.controls["sent settings removed"] == (1, 1)
    same = {name: {"a": "Hello."} for name in theirs}
    fill_calls(board, LiteLLMRun(same, {"none": {}}), LiteLLMRun(theirs, sent))
    assert board.controls["text changed"] == (0, 1)
    assert board.cells["a", "sent"] != ""
