"""``dragoman.batch``: results, order, failures, budgets, limits, cache and restarts after a normal
end.
"""

import asyncio
import json
import os
import random
import threading
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import dragoman as d
from dragoman.batches import BatchError, BatchProgress, OutputError, StrictError
from dragoman.batches import output as output_module
from dragoman.middleware import LimiterUnavailableError
from dragoman.sim import Answer, Call, ScriptedProvider
from tests.listed import Clock, Listed
from tests.waiting import PATIENCE, settle, until, virtual_time

from .conftest import results, run

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


class Echo(Listed):
    """Answers each prompt with the prompt's text, after a delay that differs from call to call."""

    def __init__(
        self, answers: Mapping[str, Any] | None = None, *, pause: float = 0.0, **settings: Any
    ) -> None:
        super().__init__(**settings)
        self.given = dict(answers or {})
        self.dice = random.Random(1)
        self.pause = pause
        self.most = 0
        self.holds: dict[str, asyncio.Event] = {}

    async def events(self, request: d.Request) -> Any:
        prompt = request.messages[-1].text  # type: ignore[union-attr]
        self.answers.append(self.given.get(prompt, f"{prompt}!"))
        answering = super().events(request)
        self.running_now = getattr(self, "running_now", 0) + 1
        self.most = max(self.most, self.running_now)
        try:
            events: list[d.Event] = []
            failure: Exception | None = None
            try:
                async for event in answering:
                    events.append(event)
            except Exception as error:
                failure = error
            await asyncio.sleep(self.dice.random() * self.pause)
            if prompt in self.holds:
                await self.holds[prompt].wait()
            for event in events:
                yield event
            if failure is not None:
                raise failure
        finally:
            self.running_now -= 1


def holding(prompt: str) -> Echo:
    """Return a model that answers every prompt except the given one, which hangs until the test
    releases it.
    """
    model = Echo()
    model.holds[prompt] = asyncio.Event()
    return model


def cut_off() -> d.StreamInterruptedError:
    error = d.StreamInterruptedError("cut")
    error.response = d.Response(d.Assistant("half"), "error", usage=d.Usage(10, 2, estimated=True))
    return error


def prompts(count: int) -> list[dict[str, Any]]:
    return [{"id": f"r{number}", "prompt": f"p{number}"} for number in range(count)]


def count_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.parametrize("order", ["input", "completed"])
async def test_every_row_has_a_result_in_the_chosen_order(out: Path, order: str) -> None:
    model = Echo(pause=5)
    with virtual_time():
        report = await run(prompts(200), out, model, concurrency=20, order=order)
    found = [(row["line"], row["text"]) for row in results(out)]
    assert sorted(found) == [(number + 1, f"p{number}!") for number in range(200)]
    assert (found == sorted(found)) == (order == "input")
    assert report.rows == 200
    assert report.failed == 0
    assert report.resumed == 0
    assert report.stopped is None
    assert 1 < model.most <= 20
    assert sorted(path.name for path in out.parent.iterdir()) == ["out.jsonl", "out.jsonl.state"]


@pytest.mark.parametrize("order", ["input", "completed"])
async def test_slow_row_does_not_delay_writing_the_others(out: Path, order: str) -> None:
    running = asyncio.create_task(run(prompts(50), out, holding("p0"), concurrency=5))
    ahead = out.with_name("out.jsonl.ahead")
    await until(lambda: count_lines(ahead) == 49, "the other rows")
    assert out.read_bytes() == b""
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    again = Echo()
    report = await run(prompts(50), out, again, concurrency=5, order=order)
    assert report.rows == 50
    assert report.resumed == 49
    assert len(again.requests) == 1
    lines = [row["line"] for row in results(out)]
    assert (lines if order == "input" else sorted(lines)) == list(range(1, 51))
    assert not ahead.exists()


async def test_failed_rows_contain_the_error(out: Path) -> None:
    answers = {
        "p1": d.RateLimitError("slow down", status=429),
        "p2": cut_off(),
        "p3": ZeroDivisionError("a bug"),
    }
    report = await run(prompts(5), out, Echo(answers))
    rows = results(out)
    assert report.rows == 5
    assert report.failed == 3
    assert report.bad == 0
    assert [row.get("text") for row in rows] == ["p0!", None, None, None, "p4!"]
    assert rows[1]["error"]["category"] == "provider_rate_limit"
    assert rows[1]["error"]["status"] == 429
    assert rows[1]["id"] == "r1"
    assert rows[2]["usage"]["estimated"]
    bug = {"category": "other", "kind": "ZeroDivisionError", "message": "a bug"}
    assert rows[3]["error"] == bug


async def test_failed_rows_are_retried_only_on_request(out: Path) -> None:
    await run(prompts(3), out, Echo({"p1": d.OverloadedError("later")}))
    model = Echo()
    assert (await run(prompts(3), out, model)).failed == 1
    assert model.requests == []
    report = await run(prompts(3), out, model, retry_failed=True, order="completed")
    assert report.rows == 3
    assert report.failed == 0
    assert len(model.requests) == 1


async def test_invalid_rows_are_reported_with_their_line_number(tmp_path: Path, out: Path) -> None:
    source = tmp_path / "in.jsonl"
    lines = [
        b'{"prompt": "a", "id": "x"}', b"not json", b'{"prompt": "\x00"}', b"",
        b'{"prompt": "' + b"x" * 10_000_000 + b'"}', b'{"prompt": "b", "id": "x"}',
        b'{"prompt": 5}', b'{"prompt": "c"}',
    ]  # fmt: skip
    source.write_bytes(b"\n".join(lines))
    model = Echo()
    report = await run(source, out, model)
    rows = results(out)
    assert [row["line"] for row in rows] == [1, 2, 3, 5, 6, 7, 8]
    assert [row.get("text") for row in rows] == ["a!", None, None, None, None, None, "c!"]
    for row in rows:
        assert "error" not in row or row["error"]["message"].startswith(f"line {row['line']}: ")
    assert report.rows == 7
    assert report.failed == 5
    assert report.bad == 5
    assert len(report.problems) == 5
    again = await run(source, out, Echo())
    assert again.rows == 7
    assert again.resumed == 7
    assert again.bad == 5


async def test_strict_batch_with_an_invalid_row_sends_nothing(tmp_path: Path, out: Path) -> None:
    model = Echo()
    with pytest.raises(StrictError, match="line 2: must have either"):
        await run([{"prompt": "a"}, {}], out, model, strict=True)
    assert model.requests == []
    assert not out.exists()
    assert (await run([{"prompt": "a"}], out, model, strict=True)).rows == 1


async def test_structured_output_is_parsed_for_each_row(out: Path) -> None:
    answers = {"p0": '{"n": 3}', "p1": '{"n": "x"}', "p2": '{"n": 4}'}
    report = await run(prompts(3), out, Echo(answers), response_schema=SCHEMA)
    rows = results(out)
    assert rows[0]["parsed"] == {"n": 3}
    assert rows[2]["parsed"] == {"n": 4}
    assert report.failed == 1
    assert rows[1]["error"]["category"] == "structured_output_invalid"
    assert rows[1]["error"]["output"] == '{"n": "x"}'


SEARCH = d.ServerTool("web_search", {"max_uses": 2})


@pytest.mark.parametrize(
    ("row", "settings"),
    [
        ({"prompt": "x", "tools": [{"type": "server_tool", "name": "web_search",
                                    "options": {"max_uses": 2}}]}, {}),
        ({"prompt": "x"}, {"tools": [SEARCH]}),
        ({"custom_id": "a", "url": "/v1/chat/completions",
          "body": {"model": "m", "messages": [{"role": "user", "content": "x"}]}},
         {"tools": [SEARCH]}),
    ],
    ids=["row", "batch", "batch, row in another format"],
)  # fmt: skip
async def test_server_tools_reach_the_model(
    row: dict[str, Any], settings: dict[str, Any], out: Path
) -> None:
    model = Listed("found")
    report = await run([row], out, model, **settings)
    assert report.failed == 0
    assert [request.server_tools for request in model.requests] == [(SEARCH,)]


async def test_dropped_fields_of_a_row_are_reported_in_its_result(out: Path) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x", "name": "Ada"}]}
    row = {"custom_id": "a", "url": "/v1/chat/completions", "body": body}
    await run([row], out, Listed("ok"))
    (result,) = results(out)
    assert len(result["warnings"]) == 1
    assert "messages[0].name" in result["warnings"][0]


class Stopping(Listed):
    """Answers the first prompt after eight turns of the event loop; the second stops the batch
    after another number of turns.
    """

    def __init__(self, turns: int) -> None:
        super().__init__("first")
        self.turns = turns
        self.has_answered = False

    async def events(self, request: d.Request) -> Any:
        is_first = request.messages[-1].text == "p0"  # type: ignore[union-attr]
        for _ in range(8 if is_first else self.turns):
            await asyncio.sleep(0)
        if not is_first:
            raise LimiterUnavailableError("the limiter is down")
        async for event in super().events(request):
            yield event
        self.has_answered = True


async def test_reply_that_arrives_before_the_batch_stops_is_saved(out: Path) -> None:
    saved = []
    for turns in range(16):
        model = Stopping(turns)
        with pytest.raises(BatchError, match="the limiter is down"):
            await run(prompts(2), out, model, concurrency=2, order="completed", fresh=True)
        saved.append(bool(results(out)))
        assert saved[-1] == model.has_answered
    assert set(saved) == {True, False}


async def test_batch_records_tool_calls_and_never_executes_them(out: Path) -> None:
    called: list[int] = []

    def add(n: int) -> int:
        """Return the given number, and record the call."""
        called.append(n)
        return n

    model = ScriptedProvider(Answer(tool_calls=[Call("add", {"n": 1}, "c1")]))
    await run([{"prompt": "x"}], out, model, tools=[add])
    (row,) = results(out)
    assert row["tool_calls"] == [{"id": "c1", "name": "add", "arguments": {"n": 1}}]
    assert row["finish_reason"] == "tool_calls"
    assert called == []


# --- budgets of a batch ------------------------------------------------------------------------


async def test_cost_budget_stops_a_batch_and_covers_all_its_runs(out: Path) -> None:
    model = Echo(pause=0.002)
    model.priced_as = "openai:gpt-5"  # each row uses 10 input and 5 output tokens
    one = d.cost(d.Usage(10, 5), "openai:gpt-5").total
    assert one is not None
    report = await run(prompts(100), out, model, concurrency=10, budget={"usd": one * 30})
    assert report.rows == 30
    assert report.stopped == "budget"
    assert report.cost_usd == one * 30
    assert [row["line"] for row in results(out)] == list(range(1, 31))
    assert Decimal(results(out)[0]["cost_usd"]) == one
    again = await run(prompts(100), out, model, concurrency=10, budget=f"usd={one * 40}")
    assert again.rows == 40
    assert again.resumed == 30
    assert again.stopped == "budget"
    assert len(model.requests) == 40
    last = await run(prompts(100), out, model, budget=f"usd={one * 100}")
    assert last.rows == 100
    assert last.stopped is None
    assert last.cost_usd == one * 100


@pytest.mark.parametrize(
    ("budget", "rows"), [("rows=7", 7), ("tokens=150", 10), ("usd=0", 0), ("rows=100", 20)]
)
async def test_token_and_call_budgets_stop_the_batch(out: Path, budget: str, rows: int) -> None:
    model = Echo()
    model.priced_as = "openai:gpt-5"
    report = await run(prompts(20), out, model, budget=budget)
    assert report.rows == rows
    assert report.stopped == (None if rows == 20 else "budget")


async def test_cost_budget_requires_a_known_price(out: Path) -> None:
    model = Echo()
    with pytest.raises(BatchError, match="a budget in usd cannot hold: no price for listed:m"):
        await run(prompts(3), out, model, budget="usd=5")
    assert model.requests == []


@pytest.mark.parametrize("budget", ["eur=5", "usd=x", "usd", "usd=-1", "usd=inf"])
async def test_invalid_batch_budgets_are_rejected(out: Path, budget: str) -> None:
    with pytest.raises(ValueError, match="budget"):
        await run(prompts(3), out, Echo(), budget=budget)


async def test_cost_of_failed_rows_counts_even_after_they_are_retried(out: Path) -> None:
    model = Echo({"p0": cut_off()})
    model.priced_as = "openai:gpt-5"
    first = await run(prompts(2), out, model)
    assert first.cost_usd > d.cost(d.Usage(10, 5), "openai:gpt-5").total  # type: ignore[operator]
    model.given = {}
    again = await run(prompts(2), out, model, retry_failed=True)
    assert again.failed == 0
    assert again.cost_usd > first.cost_usd


# --- retries, cache and rate limits of a batch -------------------------------------------------


async def test_transient_failures_of_rows_are_retried(out: Path) -> None:
    model = Listed(d.OverloadedError("later", retry_after=0.0), "a")
    report = await d.batch([{"prompt": "x"}], out, model, retries=1)
    assert report.failed == 0
    assert len(model.requests) == 2


async def test_identical_rows_are_sent_once_with_a_cache(tmp_path: Path, out: Path) -> None:
    model = Echo(pause=2)
    model.priced_as = "openai:gpt-5"
    rows = [{"id": str(number), "prompt": f"p{number % 3}"} for number in range(30)]
    with virtual_time():
        report = await run(rows, out, model, cache=tmp_path / "cache.db")
    assert len(model.requests) == 3
    assert report.cached == 27
    assert report.cost_usd == 3 * d.cost(d.Usage(10, 5), "openai:gpt-5").total  # type: ignore[operator]
    assert [row["text"] for row in results(out)] == [f"p{number % 3}!" for number in range(30)]
    assert sum(row.get("cached", False) for row in results(out)) == 27


async def test_batch_keeps_to_concurrency_and_rate_limits(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(d.RateLimit.__init__.__kwdefaults__, "clock", Clock())
    model = Echo()
    running = asyncio.create_task(run(prompts(20), out, model, requests_per_minute=6))
    await until(lambda: count_lines(out) >= 6, "the rows that may begin at once")
    await settle()
    assert len(model.requests) == 6  # the rate limit delays the seventh call by ten seconds
    running.cancel()
    await asyncio.wait([running])
    assert len(results(out)) == 6


async def test_progress_of_a_batch_is_reported(out: Path) -> None:
    seen: list[BatchProgress] = []
    model = Echo({"p3": d.AuthenticationError("no")}, pause=0.01)
    await run(prompts(50), out, model, on_progress=seen.append)
    last = seen[-1]
    assert last.total == 50
    assert last.rows == 50
    assert last.failed == 1
    assert last.seconds_left == 0
    assert last.rate > 0
    assert [each.rows for each in seen] == sorted(each.rows for each in seen)


# --- an output file that another batch wrote ---------------------------------------------------


async def test_output_file_of_a_batch_with_other_settings_is_rejected(out: Path) -> None:
    await run(prompts(3), out, Echo())
    for settings in ({"temperature": 0.5}, {"system": "x"}, {"template": "{prompt}"}):
        with pytest.raises(OutputError, match="another model or other settings"):
            await run(prompts(3), out, Echo(), **settings)
    with pytest.raises(OutputError, match="another model or other settings"):
        await run(prompts(3), out, Echo(model="other"))
    assert (await run(prompts(3), out, Echo(), temperature=0.5, fresh=True)).resumed == 0


LONG = [{"prompt": f"{number} " + "x" * 900} for number in range(150)]
CHANGED = [*LONG[:120], {"prompt": "changed"}, *LONG[121:]]


@pytest.mark.parametrize("is_file", [True, False])
@pytest.mark.parametrize(
    ("first", "second", "resumed"),
    [
        (LONG[:2], LONG[:2], 2),
        (LONG[:2], LONG[:5], 2),
        (LONG[:3], LONG[:2], None),
        (LONG[:3], [{"prompt": f"other {number}"} for number in range(6)], None),
        (LONG, CHANGED, None),
        (LONG, [*CHANGED, *LONG], None),
    ],
    ids=["same", "appended", "shorter", "other", "row 121 changed", "changed and appended"],
)
async def test_changed_input_is_rejected_and_extended_input_is_continued(
    tmp_path: Path, out: Path, first: list[Any], second: list[Any], resumed: int | None,
    is_file: bool,
) -> None:  # fmt: skip
    def place(rows: list[Any]) -> Any:
        if is_file:
            (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return tmp_path / "in.jsonl" if is_file else rows

    await run(place(first), out, Echo())
    if resumed is None:
        saved = out.read_bytes()
        with pytest.raises(OutputError, match="another input"):
            await run(place(second), out, Echo())
        assert out.read_bytes() == saved
        await run(place(first), out, Echo())
    else:
        assert (await run(place(second), out, Echo())).resumed == resumed
        assert [row["line"] for row in results(out)] == list(range(1, len(second) + 1))


async def test_row_whose_line_was_extended_counts_as_changed(tmp_path: Path, out: Path) -> None:
    source = tmp_path / "in.csv"
    source.write_text("prompt\na")
    await run(source, out, Echo())
    source.write_text("prompt\na\nb")
    assert (await run(source, out, Echo())).resumed == 1
    source.write_text("prompt\na\nbc")
    with pytest.raises(OutputError, match="another input"):
        await run(source, out, Echo())


async def test_output_file_of_another_program_is_never_changed(out: Path) -> None:
    out.write_text("precious")
    for fresh in (False, True):
        with pytest.raises(OutputError, match="is not the output of a batch"):
            await run(prompts(3), out, Echo(), fresh=fresh)
        assert out.read_text() == "precious"
    out.unlink()
    await run(prompts(3), out, Echo())
    out.write_text("precious\n")
    with pytest.raises(OutputError, match="line 1, is not a result of a batch"):
        await run(prompts(3), out, Echo())
    assert out.read_text() == "precious\n"


@pytest.mark.parametrize("link", ["", "symlink_to", "hardlink_to"])
async def test_input_file_is_rejected_as_output_file(tmp_path: Path, link: str) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "a"}\n')
    out = tmp_path / "out.jsonl" if link else source
    if link:
        getattr(out, link)(source)
    for fresh in (False, True):
        with pytest.raises(OutputError, match="is the input"):
            await run(source, out, Echo(), fresh=fresh)
    assert source.read_text() == '{"prompt": "a"}\n'


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("kind", ["device", "pipe", "folder"])
async def test_output_that_is_not_a_regular_file_is_refused_by_name(
    kind: str, fresh: bool, tmp_path: Path
) -> None:
    out = Path(os.devnull) if kind == "device" else tmp_path / "out"
    if kind == "pipe":
        os.mkfifo(out)
    elif kind == "folder":
        out.mkdir()
    with pytest.raises(OutputError, match=f"^{out} is not a regular file"):
        await run(prompts(2), out, Echo(), fresh=fresh)


@pytest.mark.parametrize("fresh", [False, True])
async def test_output_of_a_running_batch_is_locked(out: Path, fresh: bool) -> None:
    model = holding("p1")
    running = asyncio.create_task(run(prompts(2), out, model, order="completed"))
    await until(lambda: count_lines(out) == 1, "the result of the first row")
    with pytest.raises(OutputError, match="another process"):
        await run(prompts(2), out, Echo(), fresh=fresh)
    model.holds["p1"].set()
    assert (await running).rows == len(results(out)) == 2


async def test_retried_failures_are_written_to_the_target_of_a_link(
    tmp_path: Path, out: Path
) -> None:
    target = tmp_path / "target.jsonl"
    out.symlink_to(target)
    await run(prompts(2), out, Echo({"p1": d.OverloadedError("busy")}))
    await run(prompts(2), out, Echo(), retry_failed=True)
    assert out.is_symlink()
    assert [row["text"] for row in results(target)] == ["p0!", "p1!"]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('"line":2', '"line":0', "line 2.*`int` >= 1"),
        ('"line":2', '"line":-1', "line 2.*`int` >= 1"),
        ('"line":2', f'"line":{10**30}', "line 2.*`int` <= "),
        ('"line":2', '"line":2,"cost_usd":"NaN"', "line 2.*not an amount of money: NaN"),
        ('"line":2', '"line":2,"cost_usd":"-1"', "line 2.*not an amount of money: -1"),
        ('"line":2', '"line":2,"cost_usd":"1e999999"', "line 2.*not an amount of money"),
        ('"input_tokens":10', '"input_tokens":"ten"', "line 1.*not whole numbers"),
        ('"line":2', '"line":2,"usage":[1]', "line 2.*Expected `object . null`"),
    ],
)
async def test_output_with_an_impossible_value_is_rejected_by_its_line(
    out: Path, old: str, new: str, reason: str
) -> None:
    await run(prompts(3), out, Echo())
    out.write_text(out.read_text().replace(old, new, 1))
    edited = out.read_bytes()
    for retry_failed in (False, True):
        with pytest.raises(OutputError, match=reason):
            await run(prompts(3), out, Echo(), retry_failed=retry_failed)
        assert out.read_bytes() == edited


async def test_state_with_an_impossible_amount_is_rejected(out: Path) -> None:
    await run(prompts(1), out, Echo())
    state = out.with_name(out.name + ".state")
    state.write_text(state.read_text().replace('"dropped_usd":"0"', '"dropped_usd":"NaN"'))
    with pytest.raises(OutputError, match="dropped_usd is not an amount of money: NaN"):
        await run(prompts(1), out, Echo())


async def test_results_of_lines_that_the_input_does_not_have_are_reported(out: Path) -> None:
    await run(prompts(3), out, Echo())
    ahead = out.with_name(out.name + ".ahead")
    ahead.write_text(f'{{"line": {10**12}, "text": "x"}}\n')
    report = await run(prompts(3), out, Echo())
    assert report.problems == (f"{out} has 1 results of lines that the input does not have",)


@pytest.mark.parametrize("rest", ['{"line": 3, "te', "\0" * 100, "\0" * 100 + "\n"])
async def test_incomplete_last_line_of_the_output_is_removed(out: Path, rest: str) -> None:
    await run(prompts(2), out, Echo())
    whole = out.read_bytes()
    with out.open("a") as file:
        file.write(rest)
    model = Echo()
    assert (await run(prompts(3), out, model)).resumed == 2
    assert len(model.requests) == 1
    assert out.read_bytes().startswith(whole)
    assert len(results(out)) == 3


@pytest.mark.parametrize(
    "settings",
    [
        {"concurrency": 0}, {"retries": -1}, {"order": "x"}, {"template": "{"}, {"tools": 5},
        {"temperature": "x"},
    ],
)  # fmt: skip
async def test_invalid_settings_are_found_before_anything_is_sent(
    out: Path, settings: dict[str, Any]
) -> None:
    model = Echo()
    with pytest.raises((ValueError, d.InvalidRequestError)):
        await d.batch(prompts(1), out, model, **settings)
    assert model.requests == []
    assert not out.exists()


async def test_full_disk_ends_the_batch(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise OSError(28, "No space left on device")

    await run(prompts(50), out, Echo(), budget="rows=1")
    monkeypatch.setattr("os.fsync", refuse)
    with pytest.raises(OSError, match="No space left"):
        await run(prompts(50), out, Echo())


@pytest.mark.parametrize("order", ["input", "completed"])
async def test_no_row_is_started_while_writing_to_disk_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: Any
) -> None:
    """If a batch started rows while the disk hangs, its memory would grow without limit."""
    syncing = threading.Event()
    release = threading.Event()
    sync = output_module._sync  # noqa: SLF001 - a disk that hangs is played here

    def hang(file: Any) -> None:
        # The main thread writes the state file, which must not hang
        if threading.current_thread() is not threading.main_thread():
            syncing.set()
            assert release.wait(PATIENCE), "the test to continue"
        sync(file)

    monkeypatch.setattr(output_module, "_sync", hang)
    monkeypatch.setattr(output_module, "_UNSYNCED_BYTES", 5_000)
    model = Listed("x" * 1_000, repeat=True)
    rows = [{"prompt": str(number)} for number in range(200)]
    out = tmp_path / "out.jsonl"
    running = asyncio.ensure_future(d.batch(rows, out, model, concurrency=4, order=order))
    await until(syncing.is_set, "the first write")
    begun = -1
    while len(model.requests) > begun:  # wait until no more rows are started
        begun = len(model.requests)
        for _ in range(1000):
            await asyncio.sleep(0)
    release.set()
    report = await running
    assert begun < 30
    assert report.rows == 200
    assert len(model.requests) == 200
