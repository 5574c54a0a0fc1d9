"""Row formats, templates and row ids of batches."""

from typing import Any

import pytest

from dragoman.batches.rows import BadRow, Defaults, Row, RowParser, find_bad_rows, read_rows
from dragoman.batches.sources import open_source
from dragoman.batches.template import Template
from dragoman.messages import RuntimeConfig, System, Tool, User
from tests.rows import read_table


def parse(*records: Any, **defaults: Any) -> list[Row | BadRow]:
    rows = read_rows(open_source(list(records), 1000), RowParser(Defaults(**defaults), "m"))
    return [row for row in rows if isinstance(row, Row | BadRow)]


def parse_one(record: Any, **defaults: Any) -> Row:
    (row,) = parse(record, **defaults)
    assert isinstance(row, Row), row
    return row


CHAT = {"model": "other", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}
OPENAI = {"custom_id": "c", "method": "POST", "url": "/v1/chat/completions", "body": CHAT}
SHAPES: dict[str, Any] = {
    "own": {"id": "c", "prompt": "Hi", "max_tokens": 9},
    "openai": OPENAI,
    "responses": {**OPENAI, "url": "/v1/responses",
                  "body": {"model": "x", "input": "Hi", "max_output_tokens": 9}},
    "anthropic": {"custom_id": "c", "params": CHAT},
    "gemini": {"key": "c", "request": {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}],
                                       "generationConfig": {"maxOutputTokens": 9}}},
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_every_row_format_gives_the_same_request(shape: str) -> None:
    row = parse_one(SHAPES[shape])
    assert row.id == "c"
    assert row.shape == shape
    assert row.line == 1
    assert row.request.messages[0].text == "Hi"  # type: ignore[union-attr]
    assert row.request.config.max_tokens == 9  # type: ignore[union-attr]
    assert row.request.model == "m"
    assert row.request.stream is False


@pytest.mark.parametrize("shape", SHAPES)
def test_row_settings_override_batch_settings(shape: str) -> None:
    config = RuntimeConfig(temperature=0.5, max_tokens=3)
    given = {"system": "Be terse.", "config": config, "tools": (Tool("t"),)}
    request = parse_one(SHAPES[shape], **given).request
    assert request.messages[0] == System("Be terse.")
    assert request.config.temperature == 0.5
    assert request.config.max_tokens == 9
    assert request.tools == (Tool("t"),)


def test_rows_may_contain_messages_tools_and_settings() -> None:
    record = {
        "messages": [{"role": "system", "content": "x"}, {"role": "user", "content": "Hi"}],
        "tools": [{"name": "t"}],
        "tool_choice": "required",
        "response_schema": {"type": "object"},
        "temperature": 0,
        "config": {"top_p": 0.5},
        "metadata": {"a": "b"},
    }
    request = parse_one(record).request
    assert request.messages == (System("x"), User("Hi"))
    assert request.tools[0].name == "t"
    assert request.tool_choice == "required"
    assert request.response_schema == {"type": "object"}
    assert request.config.temperature == 0
    assert request.config.top_p == 0.5
    assert request.metadata == {"a": "b"}


BAD: list[tuple[Any, str]] = read_table("wrong_rows")


@pytest.mark.parametrize(("record", "reason"), BAD)
def test_invalid_row_is_reported_and_does_not_stop_the_others(record: Any, reason: str) -> None:
    bad, good = parse(record, {"prompt": "x"})
    assert isinstance(bad, BadRow)
    assert reason in bad.reason
    assert isinstance(good, Row)
    assert good.line == 2


def test_row_nested_too_deeply_does_not_stop_the_others() -> None:
    deep: Any = []
    for _ in range(5_000):
        deep = [deep]
    bad, good = parse({"prompt": "x", "response_schema": deep}, {"prompt": "x"})
    assert str(bad) == "line 1: is nested too deeply"
    assert isinstance(good, Row)


def test_duplicate_row_ids_are_rejected() -> None:
    first, again, number, same = parse(
        *[{"id": name, "prompt": "x"} for name in ("a", "a", 7, "7")]
    )
    assert isinstance(first, Row)
    assert isinstance(number, Row)
    assert number.id == "7"
    assert str(again) == "line 2: id 'a' is already used in line 1"
    assert str(same) == "line 4: id '7' is already used in line 3"


def test_id_of_a_finished_row_cannot_be_used_again() -> None:
    rows = [{"id": "a", "prompt": "x"}, {"id": "a", "prompt": "y"}]
    found = list(read_rows(open_source(rows, 1000), RowParser(Defaults(), "m"), {1}))
    assert [type(row).__name__ for row in found] == ["Skipped", "BadRow"]


def test_template_is_filled_with_column_values() -> None:
    record = {"word": "Haus", "n": 3, "x": None, "key": 5}
    row = parse_one(record, template="{{{word}}} {n}{x}", id_column="key")
    assert row.request.messages == (User("{Haus} 3"),)
    assert row.id == "5"
    (bad,) = parse({"word": "Haus"}, template="{other}")
    assert "needs a column 'other'" in str(bad)


@pytest.mark.parametrize("text", ["{", "}", "{a!r}", "{a:>5}", "{}"])
def test_invalid_templates_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="template"):
        Template(text)


@pytest.mark.parametrize("name", ["a.__class__", "a[0]", "0"])
def test_template_can_access_only_columns(name: str) -> None:
    with pytest.raises(ValueError, match="needs a column"):
        Template("{" + name + "}").fill({"a": "x"})


def test_strict_check_finds_rows_that_are_invalid_requests() -> None:
    bad = [{"messages": []}, {"prompt": "x", "tool_choice": "required"}, {"no": 1}]
    rows = [{"prompt": "x"}, *bad]
    found = find_bad_rows(open_source(rows, 1000), RowParser(Defaults(), "m"), 10)
    assert [row.line for row in found] == [2, 3, 4]
    assert len(find_bad_rows(open_source(rows, 1000), RowParser(Defaults(), "m"), 1)) == 1
