"""The rules of today's vendors, each with a request that a strict simulator refuses for it."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import dragoman as d
from dragoman.sim import ScriptedProvider, SimServer
from dragoman.sim.strict import StrictModel
from dragoman.validate.yaml import ConfigError
from dragoman.wire import SERVER_CODECS
from dragoman.wire.openai.quirks import Quirks
from tests.rows import read_table

ROOT = Path(__file__).parents[2]
CASES = ROOT / "src/dragoman/conformance/cases"
ROWS = read_table("vendor_rules")
REFUSED = [row for row in ROWS if "says" in row]
SCHEMA = {"type": "object"}
TURN = [{"role": "user", "content": "Hi"}]
FUNCTION = {"name": "look", "parameters": SCHEMA}
# A question with a tool on each wire. The fields of a row replace those of the question.
ASKED: dict[str, dict[str, Any]] = {
    "openai": {"messages": TURN, "tools": [{"type": "function", "function": FUNCTION}]},
    "responses": {"input": "Hi", "tools": [{"type": "function", **FUNCTION}]},
    "anthropic": {
        "max_tokens": 9000, "messages": TURN, "tools": [{"name": "look", "input_schema": SCHEMA}],
    },
    "gemini": {
        "contents": [{"role": "user", "parts": [{"text": "Hi"}]}],
        "tools": [{"functionDeclarations": [FUNCTION]}],
    },
    "bedrock": {
        "messages": [{"role": "user", "content": [{"text": "Hi"}]}],
        "toolConfig": {"tools": [{"toolSpec": {"name": "look", "inputSchema": {"json": SCHEMA}}}]},
    },
    "ollama": {"messages": TURN},
}  # fmt: skip
PATHS = {
    "gemini": "/v1beta/models/{}:generateContent",
    "bedrock": "/model/{}/converse",
}


def test_every_rule_is_refused_or_has_a_reason() -> None:
    numbers = {"A": [n for n in range(1, 21) if n != 8], "O": range(1, 16), "G": range(1, 25)}
    rules = {f"{letter}{n}" for letter, found in numbers.items() for n in found} | {"G13b"}
    assert {row["row"] for row in ROWS} == rules
    reasons = {row["row"] for row in ROWS if "reason" in row}
    assert not reasons & {row["row"] for row in REFUSED}


@pytest.mark.parametrize(
    "row", [row for row in ROWS if "reason" in row], ids=lambda row: row["row"]
)
def test_reason_names_what_tests_the_rule_instead(row: dict[str, str]) -> None:
    named = re.search(r"case (\S+/\S+)\.|(tests/\S+\.\w+)", row["reason"])
    assert named is not None
    if named[1]:
        assert [*CASES.glob(f"{named[1]}.*")]
    else:
        assert (ROOT / named[2]).is_file()


@pytest.mark.parametrize("row", REFUSED, ids=[f"{row['row']}-{row['model']}" for row in REFUSED])
def test_request_that_breaks_a_rule_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(d.ProviderError, match=re.escape(row["says"])):
        _ask(row)


def _ask(row: dict[str, Any]) -> None:
    path = PATHS.get(row["wire"], "").format(row["model"])
    body = {"model": row["model"], **ASKED[row["wire"]], **row["fields"]}
    rules = StrictModel(row["wire"], row["model"], row["vendor"])
    asked = SERVER_CODECS[row["wire"]].decode(msgspec.json.encode(body), path)
    rules.check_end(row.get("today"))
    rules.check(asked.client, asked.with_extras())


def test_model_answers_until_the_day_of_its_end() -> None:
    rules = StrictModel("openai", "gpt-5", "openai")
    rules.check_end("2026-12-10")
    rules.check_end(None)
    StrictModel("openai", "gpt-6-sol", "openai").check_end("2099-01-01")
    StrictModel("openai", "gpt-5", "elsewhere").check_end("2099-01-01")
    with pytest.raises(d.InvalidModelError, match="2026-12-11"):
        rules.check_end("2026-12-11")


async def test_script_says_on_which_day_it_is_asked(tmp_path: Path) -> None:
    script = tmp_path / "script.yaml"
    script.write_text("strict: true\nvendor: deepseek\ntoday: 2026-11-18\nrules:\n  - reply: Hi\n")
    with SimServer(ScriptedProvider.from_file(script)) as server:
        async with server.connect("openai", "deepseek-flash", vendor="deepseek") as provider:
            assert (await provider.complete("Hi")).text == "Hi"
        async with server.connect("openai", "deepseek-chat", vendor="deepseek") as provider:
            with pytest.raises(d.InvalidModelError, match="2026-07-24"):
                await provider.complete("Hi")
    script.write_text("strict: true\ntoday: soon\nrules:\n  - reply: Hi\n")
    with pytest.raises(ConfigError, match=r"script.yaml:2: .*2026-12-11"):
        ScriptedProvider.from_file(script)
    with pytest.raises(ValueError, match="2026-12-11"):
        ScriptedProvider("Hi", today="18.11.2026")


def test_reasoning_without_tools_or_in_a_stream_is_accepted() -> None:
    server = SERVER_CODECS["openai"]
    quirks = Quirks(tools_while_reasoning=False, unary_reasoning=False)
    body = {"messages": [], "stream": True}
    assert [*server.list_problems(body, quirks, reasons=True, known=())] == []
    assert len([*server.list_problems({"messages": [], "tools": [{}]}, quirks, reasons=True, known=())]) == 2  # fmt: skip
    assert [*server.list_problems(body, quirks, reasons=False, known=())] == []


def test_tools_of_two_kinds_need_the_field_only_where_it_is_known() -> None:
    server = SERVER_CODECS["gemini"]
    quirks = type("Given", (), {"server_invocations": None})
    both = {"tools": [{"functionDeclarations": []}, {"googleSearch": {}}]}
    flag = {"toolConfig": {"includeServerSideToolInvocations": True}}
    for known, body, problems in [
        (None, both, 0), (True, both, 1), (True, both | flag, 0), (True, {"tools": both["tools"][:1]}, 0),
        (False, both | flag, 1), (None, both | flag, 0),
    ]:  # fmt: skip
        quirks.server_invocations = known
        found = [*server.list_problems(body, quirks, reasons=True, known=())]
        assert len(found) == problems
