"""Every conformance case of every wire passes, and what holds for the cases of all wires."""

import copy
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from dragoman.capabilities import Capabilities
from dragoman.conformance.violation import Violation
from dragoman.wire import CODECS

from .cases import BASE_URL, Case, DecodedReply, check_case, decode, find_cases, open_decoder
from .cases import CASES as CASES_FOLDER

WIRES = sorted(CODECS)
CASES = [case for wire in WIRES for case in find_cases(wire)]

each_wire = pytest.mark.parametrize("wire", WIRES)


def replied(wire: str) -> list[Case]:
    """Return the cases of a wire that have a reply with a success status."""
    return [case for case in find_cases(wire, "events.jsonl") if case.options.status < 300]


def traced(case: Case) -> Any:
    """Return a case as a parameter. A reply is decoded in seven ways, and the tests below trace
    one of them, so coverage is not measured here.
    """
    marks = [pytest.mark.no_cover] if case.part("events.jsonl") is not None else []
    return pytest.param(case, id=f"{case.wire}-{case}", marks=marks)


@pytest.mark.parametrize("case", [traced(case) for case in CASES])
def test_conformance_case_passes(case: Case) -> None:
    check_case(case)


def test_case_with_other_events_than_its_reply_fails(tmp_path: Path) -> None:
    case = Case("openai", "usage-never", tmp_path)
    case.path("events.jsonl").parent.mkdir()
    for part in (CASES_FOLDER / "openai").glob("usage-never.*"):
        shutil.copy(part, tmp_path / "openai")
    check_case(case)
    case.path("events.jsonl").write_text("{}\n")
    case.path("folded.json").unlink()
    with pytest.raises(Violation, match="the events, fed whole"):
        check_case(case)


def test_case_of_another_folder_is_compared_by_the_fields_that_it_states(tmp_path: Path) -> None:
    (tmp_path / "openai").mkdir()
    for part in (CASES_FOLDER / "openai").glob("002-tool-call-roundtrip-1.*"):
        shutil.copy(part, tmp_path / "openai")
    case = Case("openai", "002-tool-call-roundtrip-1", tmp_path)
    path = tmp_path / "openai" / "002-tool-call-roundtrip-1.events.jsonl"
    events = [json.loads(line) for line in path.read_text().splitlines()]
    folded = json.loads(case.path("folded.json").read_bytes())

    def state(*fields: str, **changed: Any) -> None:
        few = [{name: event[name] for name in fields if name in event} for event in events]
        few[-1] |= changed
        path.write_text("\n".join(map(json.dumps, few)))

    state("type", "tool_name", "final_input")
    del folded["usage"]
    (tmp_path / "openai" / "002-tool-call-roundtrip-1.folded.json").write_text(json.dumps(folded))
    check_case(case)
    state("type", finish_reason="stop")
    with pytest.raises(Violation, match="the events, fed whole"):
        check_case(case)
    events[-2]["final_input"] = {}
    state("type", "final_input")
    with pytest.raises(Violation, match="the events, fed whole"):
        check_case(case)


@pytest.mark.parametrize("wire", ["openai", "responses"])
def test_expected_reply_of_every_case_is_written_by_hand(wire: str) -> None:
    assert [case.name for case in replied(wire) if case.part("folded.json") is None] == []


@each_wire
def test_encoding_does_not_change_its_input(wire: str) -> None:
    for case in find_cases(wire, "wire.json"):
        before = copy.deepcopy(case.request)
        case.codec().encode(case.request)
        assert case.request == before, case


# --- the raw reply -----------------------------------------------------------------------------


def read_plainly(data: bytes) -> Any:
    """Parse JSON with the standard library, and replace lone surrogates; return text that is not
    JSON unchanged.
    """
    text = data.decode("utf-8", "replace")
    try:
        value = json.loads(text, parse_constant=lambda word: 1 / 0)
    except (ValueError, ZeroDivisionError):
        return text
    return json.loads(re.sub("[\ud800-\udfff]", "\ufffd", json.dumps(value, ensure_ascii=False)))


def chunks_of(data: bytes) -> list[Any]:
    """Return the data of each server-sent event, parsed without our decoder."""
    found: list[Any] = []
    text = data.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    for event in text.split(b"\n\n"):
        lines = [line[4:].removeprefix(b":") for line in event.split(b"\n") if line[:4] == b"data"]
        body = b"\n".join([line.removeprefix(b" ") for line in lines])
        if body.strip() not in (b"", b"[DONE]"):
            found.append(read_plainly(body))
    return found


@each_wire
def test_raw_reply_equals_the_received_json(wire: str) -> None:
    for case in replied(wire):
        data = case.reply or b""
        response = decode(case.codec(), case.request, [data]).response
        if response is None:
            continue  # no event was emitted, so there is no response with a raw reply
        if case.part("reply.json") is not None:
            assert response.raw == read_plainly(data.strip().removeprefix(b"\xef\xbb\xbf")), case
        elif case.is_stream:
            assert response.raw["chunks"] == chunks_of(data), case
            if wire in ("openai", "responses"):
                assert response.finish_raw in (response.raw["finish_reason"], None), case
        else:
            text = case.part("reply.ndjson") or case.part("reply.frames") or b""
            lines = [line for line in text.splitlines() if line.strip()]
            if wire == "ollama" and len(lines) == 1 and not case.request.stream:
                assert response.raw == read_plainly(lines[0]), case
            else:
                assert len(response.raw["chunks"]) == len(lines), case


@pytest.mark.no_cover
@each_wire
def test_decoder_without_the_raw_reply_gives_the_same_events_and_is_done_at_the_end(
    wire: str,
) -> None:
    for case in replied(wire):
        options = case.options
        request = case.request
        reply = case.reply or b""
        known = Capabilities.of(options.capabilities)
        codec = CODECS[wire].connect(
            options.model, BASE_URL, options.quirks, known, vendor=options.vendor, keep_raw=False
        )
        decoder = open_decoder(codec, request)
        heard = DecodedReply([*decoder.feed(reply), *decoder.end()], decoder.error)
        assert decoder.done, case
        assert decoder.end() == [], case
        assert heard.facts == decode(case.codec(), request, [reply]).facts, case
        assert heard.response is None or heard.response.raw is None, case
