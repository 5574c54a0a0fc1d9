"""Test scripts in YAML: every field can be set, and errors name the file and line of a mistake."""

import math
import re
from pathlib import Path

import pytest

from dragoman import Tool, Usage
from dragoman.messages import Continuity, Text, Thinking
from dragoman.sim import (
    Answer,
    Call,
    ConfigError,
    Fault,
    RequestMatch,
    ScriptedProvider,
    ScriptRule,
    read_script,
)
from tests.rows import read_table

WHOLE = """
seed: 7
model: sim-1
models: [sim-1, sim-2]
capabilities: {supports_images: false}
rules:
  - name: weather
    match: {text: weather, pattern: "in .*", system: s, tool_result: r, tools: [get], model: "sim-*", turn: 1,
            schema: false, stream: true}
    times: 2
    chance: 0.5
    reply:
      thinking: hm
      text: Let me see.
      tool_calls:
        - {name: get, arguments: {city: Bern, days: [1, 2]}, id: c1}
        - {name: get, arguments: '{"city":'}
      usage: {input_tokens: 3, output_tokens: 4}
      finish: tool_calls
      delay: 0.5
      pace: 1
      piece: 3
    fault: {stall: forever, after: 2, cut_at: 100, interleave: true}
  - reply:
      content:
        - {thinking: a, signature: s}
        - {text: b}
        - {name: get}
      usage: {}
  - reply: {json: {a: [1, {b: no}]}}
  - reply: plain
  - fault: {status: 429, retry_after: 1.5, message: slow, code: rate}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "script.yaml"
    path.write_text(text)
    return path


def test_every_field_of_a_yaml_script_is_read(tmp_path: Path) -> None:
    script = read_script(write(tmp_path, WHOLE))
    assert script.seed == 7
    assert script.model == "sim-1"
    assert script.served == ("sim-1", "sim-2")
    assert script.capabilities == {"supports_images": False}
    first, *rest = script.rules
    assert first.match == RequestMatch(
        text="weather",
        pattern="in .*",
        system="s",
        tool_result="r",
        tools=("get",),
        model="sim-*",
        turn=1,
        schema=False,
        stream=True,
    )
    assert first.fault == Fault(stall=math.inf, after=2, cut_at=100, interleave=True)
    assert first.times == 2
    assert first.chance == 0.5
    assert first.name == "weather"
    assert first.reply == Answer(
        "Let me see.",
        thinking="hm",
        tool_calls=[Call("get", {"city": "Bern", "days": [1, 2]}, "c1"), Call("get", '{"city":')],
        content=[],
        usage=Usage(3, 4),
        finish="tool_calls",
        stop_sequence=None,
        delay=0.5,
        pace=1,
        piece=3,
    )
    assert [rule.reply for rule in rest] == [
        Answer(
            tool_calls=[],
            content=[Thinking("a", Continuity("s")), Text("b"), Call("get")],
            usage=Usage(),
        ),
        Answer('{"a":[1,{"b":"no"}]}', tool_calls=[], content=[]),
        Answer("plain"),
        Answer(),
    ]
    assert rest[-1].fault == Fault(status=429, retry_after=1.5, message="slow", code="rate")
    assert rest[-1].name == "rules[4]"


async def test_scripted_provider_is_created_from_a_yaml_file(tmp_path: Path) -> None:
    model = ScriptedProvider.from_file(write(tmp_path, "model: m\nrules:\n  - reply: hello\n"))
    assert model.model == "m"
    assert (await model.complete("x", tools=[Tool("get")])).text == "hello"


WRONG = read_table("wrong_scripts")


@pytest.mark.parametrize(("text", "line", "complaint"), WRONG)
def test_error_names_the_file_and_line_of_a_mistake(
    tmp_path: Path, text: str, line: int, complaint: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=re.escape(complaint)) as caught:
        read_script(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert "\n" not in str(caught.value)


def test_rules_with_equal_fields_compare_equal() -> None:
    assert ScriptRule(Answer("a"), RequestMatch(text="b")) == ScriptRule(
        Answer("a"), RequestMatch(text="b")
    )
