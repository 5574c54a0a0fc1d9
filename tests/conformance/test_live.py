"""``dragoman check``: a correct server passes, each misbehaviour is found by its check, keys stay
secret.
"""

import asyncio
import contextlib
import html.parser
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

import dragoman as d
from dragoman.cli import main
from dragoman.conformance import Report, check_server
from dragoman.conformance.checks import _SQUARES, CHECKS
from dragoman.conformance.families import FAMILIES
from dragoman.conformance.report import (
    CheckOutcome,
    RecordedExchange,
    write_html,
    write_junit,
    write_markdown,
    write_text,
)
from dragoman.sim import Answer, Call, Fault, RequestMatch, Script, ScriptRule, SimServer
from dragoman.wire import SERVER_CODECS

from ..ports import find_free_port
from ..server import Connection, answering, replying, serve
from ..waiting import arrival

Sim = Callable[..., SimServer]
TEXT = "The sea is wide and blue and full of fish and ships and songs."
# Only an exact match can hide this key, because it does not look like one.
KEY = "battery.staple.0123456789"
# Arguments that fit the tool of each family of schemas.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "add_customer": {
        "name": "Ada",
        "address": {"street": "Ring 1", "city": {"name": "Bern", "country": "Switzerland"}},
    },
    "set_light": {"room": "hall", "state": "dimmed"},
    "find_order": {"order": {"customer": "Ada"}},
    "get_forecast": {"city": "Oslo"},
    "order_items": {"items": [{"name": "chair", "count": 1}, {"name": "cup", "count": 4}]},
    "save_note": {
        "title": '"old"',
        "text": 'Bring the "old" ladder,\nthen 3 ropes & a tarpaulin.',
    },
    "book_table": {"größe": 2, "都市": "東京"},
}


def look(request: d.Request) -> str | None:
    """Return the colour of the image in a request, or None if the request has no image."""
    content = request.messages[-1].content
    shown = (
        [block.source for block in content if isinstance(block, d.Image)]
        if not isinstance(content, str)
        else []
    )
    for colour, square in _SQUARES.items():
        if any(isinstance(source, d.Inline) and source.base64_data == square for source in shown):
            return colour
    return None


def recall(request: d.Request) -> str | None:
    """Return an answer that shows what was read: the system prompt, a turn, a result or a text."""
    first = request.messages[0]
    last = request.messages[-1]
    if isinstance(first, d.System):
        return first.content.rpartition(" ")[2]
    if isinstance(last, d.ToolResult):
        return f"It says: {last.text}"
    if len(request.messages) > 2 or "Repeat" in last.text:
        return f"{first.text} {last.text}"  # type: ignore[union-attr]
    if request.config.seed is not None:
        return f"{TEXT} {request.config.seed}"
    return None


def obliging(request: d.Request) -> Answer:
    """Answer like a model that does everything the request asks for."""
    config = request.config
    text = TEXT
    for stop in config.stop_sequences or ():
        text = text.partition(stop)[0]
    if request.response_schema is not None:
        text = '{"colour": "vermilion", "count": 3}'
    if (colour := look(request)) is not None:
        return Answer(f"It is {colour}.", usage=d.Usage(9, 14))
    count = 2 if "Oslo" in request.messages[-1].text else 1  # type: ignore[union-attr]
    if (
        request.tools
        and request.tool_choice != "none"
        and type(request.messages[-1]).__name__ == "User"
    ):
        name = (
            request.tool_choice.name
            if isinstance(request.tool_choice, d.ForceTool)
            else request.tools[-1].name
        )
        given = ARGUMENTS.get(name, {"city": "Bern"})
        return Answer(tool_calls=[Call(name, given) for _ in range(count)])
    if (found := recall(request)) is not None:
        return Answer(found, usage=d.Usage(9, 14))
    if config.max_tokens is not None and config.max_tokens <= 5:
        return Answer("one two", finish="length", usage=d.Usage(9, config.max_tokens))
    return Answer(text, usage=d.Usage(9, 14, total_tokens=23))


# These wires have no seed.
UNSEEDED = {
    "anthropic": ("sampling.seed",),
    "bedrock": ("sampling.seed",),
    "responses": ("sampling.seed",),
}
LONG = RequestMatch(where=lambda request: len(str(request.messages)) > 1200)
TOO_LONG = ScriptRule(
    fault=Fault(error="ContextOverflowError", message="the prompt is too long"), match=LONG
)
GOOD = Script([TOO_LONG, ScriptRule(obliging)], model="m", models=["m"])


def outcomes(report: Report) -> dict[str, str]:
    return {outcome.name: outcome.status for outcome in report.outcomes}


@pytest.mark.parametrize("wire", sorted(SERVER_CODECS))
async def test_correct_server_passes_the_checks(dragoman_sim: Sim, wire: str) -> None:
    sim = dragoman_sim(GOOD)
    seen: list[tuple[int, int, str]] = []
    report = await check_server(
        sim.base_urls[wire], wire=wire, context=300, progress=lambda *at: seen.append(at)
    )  # fmt: skip
    found = outcomes(report)
    assert [outcome for outcome in report.outcomes if outcome.status == "fail"] == []
    assert {name for name, status in found.items() if status != "pass"} <= {
        "errors.key", "sampling.logprobs", "limits.stop", *UNSEEDED.get(wire, ()),
        "schema.native" if wire == "bedrock" else "stream.end_mark",
    }  # fmt: skip
    if wire == "bedrock":  # it has no format of replies
        return
    assert report.model == "m"
    assert seen[0][:2] == (0, len(CHECKS))
    assert seen[-1][:2] == (len(CHECKS), len(CHECKS))
    known = report.capabilities
    for flag in (
        "tools",
        "images",
        "streaming",
        "structured_output",
        "system_prompt",
        "parallel_tool_calls",
    ):
        fact = getattr(known, f"supports_{flag}")
        assert fact.value is True, flag
        assert fact.source == "probed", flag
        assert fact.at
        assert fact.by == "dragoman check"
    assert known.known("max_context_tokens") == 300
    assert set(report.probes) == {
        "tools", "parallel_tools", "forced_choice", "schema", "images", "streaming",
        "streaming_usage", "stop", "seed",
        "logprobs", "context_limit", "cancel", "faulty_tool_calls",
    }  # fmt: skip
    families = {each.name: {"sound": len(each.questions)} for each in FAMILIES}
    assert report.tool_calls == families
    assert report.probes["faulty_tool_calls"] == "0 of 14, 0.0% (0.0%-21.5%)"


def changed(**facts: Any) -> ScriptRule:
    return ScriptRule(lambda request: replace(obliging(request), **facts))


def textual(request: d.Request) -> Answer:
    return obliging(replace(request, tools=()))


def has_tools(request: d.Request) -> bool:
    return bool(request.tools)


def has_image(request: d.Request) -> bool:
    content = request.messages[-1].content
    return not isinstance(content, str) and any(isinstance(block, d.Image) for block in content)


def ignoring_choice(request: d.Request) -> Answer:
    choice = "auto" if isinstance(request.tool_choice, d.ForceTool) else request.tool_choice
    answer = obliging(replace(request, tool_choice=choice))
    return replace(
        answer,
        tool_calls=[replace(call, name=request.tools[0].name) for call in answer.tool_calls],
    )


HABITS: dict[str, tuple[ScriptRule, dict[str, str]]] = {
    "says nothing": (ScriptRule(Answer("", usage=d.Usage(1, 1))),
                     {"text.complete": "fail", "stream.rules": "fail"}),
    "counts nothing": (changed(usage=d.Usage()),
                       {"usage.reported": "fail", "stream.usage": "unsupported"}),
    "counts wrongly": (changed(usage=d.Usage(3, 3, total_tokens=7)), {"usage.reported": "fail"}),
    "runs on": (changed(usage=d.Usage(9, 99), finish="stop"), {"limits.max_tokens": "fail"}),
    "never stops": (
        ScriptRule(
            lambda request: obliging(
                replace(request, config=replace(request.config, stop_sequences=None))
            )
        ),
        {"limits.stop": "fail"},
    ),
    "ignores tools": (ScriptRule(textual, RequestMatch(where=has_tools)),
                      {"tools.auto": "unsupported", "tools.forced": "fail",
                       "tools.required": "fail", "tools.streamed": "unsupported",
                       "tools.none": "not_observed"}),
    "calls another": (ScriptRule(ignoring_choice, RequestMatch(where=has_tools)),
                      {"tools.forced": "fail", "tools.auto": "pass"}),
    "refuses tools": (ScriptRule(fault=Fault(status=400, message="tools are not supported"),
                                 match=RequestMatch(where=has_tools)),
                      {"tools.auto": "unsupported", "tools.forced": "unsupported",
                       "tools.results": "unsupported"}),
    "calls all the same": (
        ScriptRule(lambda request: obliging(replace(request, tool_choice="auto")),
                   RequestMatch(where=has_tools)), {"tools.none": "fail"}),
    "misfits": (
        ScriptRule(lambda request: Answer(tool_calls=[Call(request.tools[0].name, {"city": "Bern"})]),
                   RequestMatch(where=has_tools)),
        {"calls.nested": "unsupported", "calls.enums": "unsupported", "calls.optional": "pass"}),
    "breaks the schema": (ScriptRule("Blue, I think.", RequestMatch(schema=True)),
                          {"schema.native": "fail"}),
    "is blind": (ScriptRule(fault=Fault(status=400,
                                        message="this model does not support image input"),
                            match=RequestMatch(where=has_image)),
                 {"images.inline": "unsupported"}),
    "takes pictures": (ScriptRule(TEXT, RequestMatch(where=has_image)),
                       {"images.inline": "not_observed"}),
    "guesses": (ScriptRule("It is red.", RequestMatch(where=has_image)),
                {"images.inline": "not_observed"}),
    "has one answer": (ScriptRule(TEXT),
                       {"text.system": "not_observed", "text.turns": "not_observed",
                        "text.unicode": "not_observed", "tools.none": "not_observed",
                        "tools.results": "not_observed", "sampling.seed": "not_observed"}),
    "says what one may wish": (ScriptRule("Red, or blue: it is coloured.",
                                          RequestMatch(where=has_image)),
                               {"images.inline": "not_observed"}),
    "breaks off": (ScriptRule(obliging, RequestMatch(stream=True), fault=Fault(end_at=300)),
                   {"stream.rules": "fail", "text.complete": "pass"}),
    "labels wrongly": (ScriptRule(obliging, RequestMatch(stream=True),
                                  fault=Fault(content_type="application/json")),
                       {"stream.label": "fail", "stream.rules": "pass"}),
    "cuts in silence": (ScriptRule(obliging, LONG), {"limits.context": "fail"}),
    "is busy": (ScriptRule(fault=Fault(status=503)),
                {"text.complete": "fail", "tools.auto": "fail"}),
}  # fmt: skip


@pytest.mark.parametrize("habit", HABITS)
async def test_each_misbehaviour_of_a_server_is_found_by_its_check(
    dragoman_sim: Sim, habit: str
) -> None:
    rule, wanted = HABITS[habit]
    sim = dragoman_sim(Script([rule, *GOOD.rules], model="m", models=["m"]))
    skip = [check.name for check in CHECKS if check.name not in wanted]
    report = await check_server(sim.base_urls["openai"], skip=skip, context=300)
    assert outcomes(report) == wanted
    for outcome in report.outcomes:
        if outcome.status in ("fail", "unsupported"):
            assert outcome.detail
            assert outcome.evidence
            assert outcome.evidence[-1].status
    assert report.failed == ("fail" in wanted.values())


@pytest.mark.parametrize(
    ("rule", "known"),
    [
        (ScriptRule(obliging), True),
        (ScriptRule("It is red.", RequestMatch(where=has_image)), None),
        (
            ScriptRule(
                fault=Fault(status=400, message="no image input"),
                match=RequestMatch(where=has_image),
            ),
            False,
        ),
    ],
)
async def test_image_support_is_recognised_by_naming_the_right_colours(
    dragoman_sim: Sim, rule: ScriptRule, known: bool | None
) -> None:
    sim = dragoman_sim(Script([rule, *GOOD.rules], model="m", models=["m"]))
    report = await check_server(sim.base_urls["openai"], skip=["[!i]*"])
    assert report.capabilities.known("supports_images") is known
    assert report.probes["images"] is known


@pytest.mark.parametrize(
    "wire", sorted({"openai", "anthropic", "responses", "ollama"} & set(SERVER_CODECS))
)
@pytest.mark.parametrize("finish", ["stop", "length"])
async def test_end_marker_check_accepts_a_stream_that_ends_at_the_token_limit(
    dragoman_sim: Sim, wire: str, finish: str
) -> None:
    sim = dragoman_sim(Script([changed(finish=finish)], model="m", models=["m"]))
    skip = [check.name for check in CHECKS if check.name != "stream.end_mark"]
    report = await check_server(sim.base_urls[wire], wire=wire, skip=skip)
    assert outcomes(report) == {"stream.end_mark": "pass"}


async def test_check_of_an_unavailable_server_reports_no_capabilities(dragoman_sim: Sim) -> None:
    sim = dragoman_sim(ScriptRule(fault=Fault(status=503)))
    report = await check_server(sim.base_urls["openai"], skip=["[!ti]*"])
    assert report.failed
    assert report.capabilities == d.Capabilities()
    assert set(report.probes.values()) == {None}


async def test_check_finds_a_server_that_accepts_invalid_requests() -> None:
    async with serve(answering("hello there")) as server:
        report = await check_server(server.base_url, skip=["[!e]*"])
    assert outcomes(report) == {
        "errors.unknown_model": "fail",
        "errors.malformed": "fail",
        "errors.no_messages": "fail",
        "errors.key": "not_applicable",
    }


@pytest.mark.usefixtures("virtual_time")
async def test_check_finds_a_server_that_keeps_generating_after_disconnection() -> None:
    """The test server delays the next call until the abandoned one is finished, as a server
    without cancellation does.
    """
    free = 0.0
    answer = answering("hello there")

    async def busy(connection: Connection) -> None:
        nonlocal free
        if connection.seen.method == "POST":
            now = asyncio.get_running_loop().time()
            if connection.seen.json.get("stream"):
                free = now + 12
            else:
                await asyncio.sleep(free - now)
        await answer(connection)

    async with serve(busy) as server:
        report = await check_server(server.base_url, skip=["[!c]*", "concurrency.*"])
    assert outcomes(report)["cancel.stops"] == "unsupported"


async def test_short_key_is_not_hidden_inside_words() -> None:
    """A local server often gets the key ``k``, which would make requests in a report unreadable."""

    async def refuse(connection: Connection) -> None:
        connection.reply(400, b'{"error": {"message": "no such token"}}')

    async with serve(refuse) as server:
        report = await check_server(server.base_url, api_key="k", wire="openai", model="m")
    text = report.to_json().decode()
    assert "max_tokens" in text
    assert "[hidden]" not in text


async def test_check_report_contains_no_api_key() -> None:
    async def repeat(connection: Connection) -> None:
        if connection.seen.method == "GET":
            connection.reply(200, b'{"data": [{"id": "m"}]}')
            return
        shown = connection.seen.headers.get("authorization", "").encode()
        connection.reply(
            401, b'{"error": {"message": "no such key: ' + shown + b" " + KEY.encode() + b'"}}'
        )

    async with serve(repeat) as server:
        url = server.base_url.replace("http://", "http://") + "?token=hidden-in-the-query"
        report = await check_server(url, api_key=KEY, wire="openai", model="m")
    texts = [write_text(report), write_markdown(report), write_junit(report), write_html(report)]
    texts += [report.to_json().decode(), report.to_facts().decode(), repr(report)]
    for text in texts:
        assert KEY not in text
        assert "hidden-in-the-query" not in text
    assert "[hidden]" in texts[0]
    assert outcomes(report)["errors.key"] == "pass"


async def test_remaining_checks_are_skipped_when_the_time_limit_is_reached(
    dragoman_sim: Sim,
) -> None:
    report = await check_server(dragoman_sim(GOOD).base_urls["openai"], budget=0)
    assert set(outcomes(report).values()) == {"not_applicable"}
    assert not report.failed
    assert report.capabilities == d.Capabilities()


async def test_check_of_an_address_without_a_server_ends_at_once(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{find_free_port()}"
    for given in ({}, {"model": "m", "wire": "openai"}):
        with pytest.raises(d.NetworkError, match="cannot be reached"):
            await check_server(url, **given)  # type: ignore[arg-type]
    done = await asyncio.to_thread(CliRunner().invoke, main, ["check", url, "--model", "m"])
    assert done.exit_code == 14
    assert "FAIL" not in done.output


async def test_checks_after_the_end_of_a_server_are_not_failures() -> None:
    async with contextlib.AsyncExitStack() as stack:
        calls = 0

        async def leave(connection: Connection) -> None:
            nonlocal calls
            calls += 1
            if calls < 4:
                await answering("hello there")(connection)
            else:
                ending.set()
                await asyncio.Event().wait()

        ending = asyncio.Event()
        server = await stack.enter_async_context(serve(leave))
        checking = asyncio.ensure_future(check_server(server.base_url, "m", "openai"))
        await arrival(ending.wait(), "the fourth request")
        await stack.aclose()
        report = await checking
    gone = [each for each in report.outcomes if "no longer be reached" in each.detail]
    assert len(gone) > 30
    assert {each.status for each in gone} == {"not_applicable"}


async def test_invalid_arguments_of_a_server_check_are_rejected(dragoman_sim: Sim) -> None:
    url = dragoman_sim(GOOD).base_urls["openai"]
    with pytest.raises(ValueError, match="unknown wire"):
        await check_server(url, wire="morse")
    with pytest.raises(ValueError, match="no check has that name"):
        await check_server(url, skip=["tool.auto"])

    async with serve(replying(404, b"{}")) as server:
        with pytest.raises(d.InvalidModelError, match="lists no model"):
            await check_server(server.url)


async def test_wire_of_a_server_is_detected() -> None:
    async def native(connection: Connection) -> None:
        found = {
            "/api/version": b'{"version": "1"}',
            "/api/tags": b'{"models": [{"name": "tiny:latest"}]}',
        }
        body = found.get(connection.seen.path)
        connection.reply(200 if body else 404, body or b"{}")

    async with serve(native) as server:
        report = await check_server(server.url, budget=0)
    assert report.wire == "ollama"
    assert report.model == "tiny:latest"


# --- formats of the report ---------------------------------------------------------------------

ECHOED = RecordedExchange("POST", "/x", "{}", 200, "]]> <i>\x1b")
NASTY = Report(
    url="http://h/v1",
    wire="openai",
    model="m<script>|",
    by="dragoman",
    at="2026-01-01T00:00:00Z",
    outcomes=(
        CheckOutcome(
            name="a.b",
            title="does |<b>",
            status="fail",
            detail='not "so" & <so>\x00',
            evidence=(ECHOED,),
        ),
        CheckOutcome(name="a.c", title="does c", status="pass"),
        CheckOutcome(name="a.d", title="does d", status="unsupported", detail="no"),
        CheckOutcome(name="a.e", title="does e", status="not_applicable", detail="no"),
        CheckOutcome(name="a.f", title="does f", status="not_observed", detail="no"),
    ),
    capabilities=d.Capabilities.of({"max_context_tokens": 1, "supports_tools": True}, "probed"),
    probes={"seed": None},
)


def test_junit_report_is_valid_xml() -> None:
    suite = ElementTree.fromstring(write_junit(NASTY).encode())[0]
    facts = [suite.get(name) for name in ("tests", "failures", "skipped", "errors")]
    assert facts == ["5", "1", "3", "0"]
    assert suite.find("testcase/failure") is not None


def test_html_report_escapes_markup_sent_by_the_server() -> None:
    page = write_html(NASTY)
    tags: list[str] = []

    class Parser(html.parser.HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            tags.append(tag)

    Parser().feed(page)
    assert not {"script", "b", "i", "so", "link", "img"} & set(tags)
    assert "http" not in page.replace("http://h/v1", "")


def test_text_report_is_readable_without_colour() -> None:
    text = write_text(NASTY)
    for word in (
        "FAIL",
        "pass",
        "not supported",
        "not applicable",
        "max_context_tokens",
        "unknown",
    ):
        assert word in text
    assert "\x1b[" not in text
    assert "1 pass, 1 fail, 1 not supported, 1 not observed, 1 not applicable" in text
    table = [line for line in write_markdown(NASTY).splitlines() if line.startswith("| `")]
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 4 for line in table)


# --- the file of probed capabilities -----------------------------------------------------------


def test_saved_capabilities_can_be_loaded_again(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    path.write_bytes(NASTY.to_facts())
    assert d.Capabilities.read(path) == NASTY.capabilities
    model = d.connect(
        "m", base_url="http://127.0.0.1:1/v1", capabilities=d.Capabilities.read(path)
    )
    assert model.capabilities.supports_tools.source == "probed"


# --- dragoman check, the command ---------------------------------------------------------------


def test_check_command_writes_every_report_format(
    dragoman_sim: Sim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAGOMAN_API_KEY", KEY)
    files = {form: tmp_path / form for form in ("junit", "html", "markdown", "save")}
    options = [word for form, path in files.items() for word in (f"--{form}", str(path))]
    url = dragoman_sim(GOOD).base_urls["openai"]
    result = CliRunner().invoke(main, ["check", url, "--skip", "errors.*", *options])
    assert result.exit_code == 0, result.output
    assert "0 fail" in result.output
    for path in files.values():
        assert path.stat().st_size > 500
        assert KEY not in path.read_text()
    assert d.Capabilities.read(files["save"]).supports_images.value is True


def test_check_command_fails_when_a_check_fails(dragoman_sim: Sim) -> None:
    sim = dragoman_sim(ScriptRule("Blue.", RequestMatch(schema=True)), ScriptRule(obliging))
    result = CliRunner().invoke(
        main, ["check", sim.base_urls["openai"], "--skip", "[!s]*", "--skip", "st*", "--json"]
    )
    report = json.loads(result.stdout)
    assert result.exit_code == 30
    assert report["failed"] is True
    assert report["counts"]["fail"] == 1
    (failed,) = [outcome for outcome in report["outcomes"] if outcome["status"] == "fail"]
    assert failed["name"] == "schema.native"
    assert "Blue." in failed["evidence"][-1]["got"]


MISUSED = [
    (["check", "http://127.0.0.1:1/v1", "--skip", "nope"], 2, "no check has that name"),
    (["check", "ftp://x", "--model", "m", "--wire", "openai"], 2, "http or https"),
    (["check", "http://127.0.0.1:1/v1", "--wire", "morse"], 2, "morse"),
    (["check", "http://127.0.0.1:1/v1"], 14, "cannot be reached"),
]


@pytest.mark.parametrize(("words", "code", "complaint"), MISUSED)
def test_check_command_reports_invalid_options(
    words: list[str], code: int, complaint: str
) -> None:
    result = CliRunner().invoke(main, words)
    assert result.exit_code == code
    assert complaint in result.output
    assert "Traceback" not in result.output


def test_documentation_lists_every_check() -> None:
    page = (Path(__file__).parents[2] / "docs/howto/check-a-server.md").read_text()
    listed = page.partition("The checks: ")[2].partition(".\n")[0]
    assert re.findall(r"`([\w.]+)`", listed) == [check.name for check in CHECKS]
