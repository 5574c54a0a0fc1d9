"""Test functions and programs as tools: validation, timeouts, output limits and results."""

from __future__ import annotations

import asyncio
import hashlib
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.messages import Image, Inline, Text, Tool, Url
from dragoman.tools import (
    FunctionTool,
    Observation,
    ProcessTool,
    Toolbox,
    ToolFailure,
    clean_environment,
    gather_tools,
    limit_output,
    tool,
)
from dragoman.tools.process import run_process
from dragoman.tools.runtime import cut_text

from ..waiting import PATIENCE, arrival, until, virtual_time


class Point(msgspec.Struct):
    x: int
    y: int = 0


def add(point: Point, by: Annotated[int, "how much"] = 1) -> int:
    """Add a number to the coordinates of a point."""
    return point.x + point.y + by


async def run(made: FunctionTool | ProcessTool, **arguments: Any) -> Observation:
    box = Toolbox([made])
    rejection = box.validate(made.name, arguments)
    assert rejection is None, rejection
    return await box.execute(made.name, arguments)


async def test_arguments_are_converted_to_the_types_of_the_function() -> None:
    seen = await run(FunctionTool(add), point={"x": 1, "y": 2}, by=3)
    assert seen.content == "6"
    assert seen.is_error is False
    assert seen.duration_ms is not None


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({}, '"point" is a required property'),
        ({"point": {"x": "1"}}, "is not of type"),
        ({"point": {"x": 1}, "by": 1.5}, "1.5 is not"),
        ({"point": {"x": 1}, "bye": 1}, "unknown argument 'bye'; the tool takes by, point"),
    ],
)
def test_arguments_are_validated_before_anything_runs(arguments: Any, complaint: str) -> None:
    rejection = Toolbox([FunctionTool(add)]).validate("add", arguments)
    assert rejection[0] == "invalid_arguments"
    assert complaint in rejection[1]


async def test_tool_made_from_a_partial_keeps_its_bound_arguments() -> None:
    made = FunctionTool(partial(add, by=3))
    assert (await run(made, point={"x": 1})).content == "4"
    rejection = Toolbox([made]).validate("add", {"point": {"x": 1}, "by": 5})
    assert "unknown argument 'by'" in rejection[1]


async def test_callable_object_can_be_a_tool() -> None:
    class Counter:
        """Add the x coordinate of a point to a sum; return the sum."""

        seen = 0

        async def __call__(self, point: Point) -> int:
            self.seen += point.x
            return self.seen

    made = FunctionTool(Counter())
    assert made.name == "Counter"
    assert (await run(made, point={"x": 1})).content == "1"
    assert (await run(made, point={"x": 2})).content == "3"


def test_unknown_tool_is_rejected() -> None:
    assert Toolbox().validate("fly", {}) == ("unknown_tool", "there is no tool named 'fly'")


RETURNS: list[tuple[Any, Any]] = [
    ("text", "text"),
    ("", ""),
    (None, "null"),
    ({"a": [1, 2.5]}, '{"a":[1,2.5]}'),
    (Point(1), '{"x":1,"y":0}'),
    (Text("a"), (Text("a"),)),
    ([Text("a"), Text("b")], (Text("a"), Text("b"))),
    (Observation("so", is_error=True), "so"),
]


@pytest.mark.parametrize(("value", "content"), RETURNS)
async def test_return_value_of_a_function_becomes_the_result(value: Any, content: Any) -> None:
    assert (await run(FunctionTool(lambda: value, name="f"))).content == content


async def test_return_value_that_cannot_be_encoded_as_json_is_an_error() -> None:
    with pytest.raises(ToolFailure) as caught:
        await run(FunctionTool(lambda: object(), name="f"))
    assert caught.value.kind == "unreadable"


def leave() -> None:
    sys.exit(3)


def end_early() -> None:
    raise StopIteration


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
        (leave, "RuntimeError: it raised SystemExit"),
        (end_early, "RuntimeError: it raised StopIteration"),
    ],
)
async def test_exception_raised_by_a_function_becomes_an_error_result(
    function: Any, said: str
) -> None:
    seen = await run(FunctionTool(function, name="f"))
    assert seen.content == said
    assert seen.is_error is True


async def test_synchronous_function_does_not_block_the_event_loop() -> None:
    inside = threading.Event()
    turn = asyncio.Event()

    def wait() -> str:
        loop.call_soon_threadsafe(turn.set)
        assert inside.wait(PATIENCE)
        return threading.current_thread().name

    loop = asyncio.get_running_loop()
    running = asyncio.ensure_future(run(FunctionTool(wait)))
    await turn.wait()
    inside.set()
    assert (await running).content == "dragoman-tool"


@pytest.mark.usefixtures("virtual_time")
async def test_tool_that_exceeds_its_timeout_fails() -> None:
    stop = threading.Event()

    async def politely() -> None:
        await asyncio.Event().wait()

    for function, word in (
        (politely, "still running after 10 s"),
        (lambda: stop.wait(PATIENCE), "may still be running"),
    ):
        made = FunctionTool(function, name="f", timeout=10)
        with pytest.raises(ToolFailure) as caught:
            await run(made)
        assert caught.value.kind == "timeout"
        assert word in caught.value.message
    stop.set()


async def test_timeout_error_raised_by_a_tool_becomes_an_error_result() -> None:
    async def slow() -> None:
        raise TimeoutError("the database")

    seen = await run(FunctionTool(slow))
    assert seen.content == "TimeoutError: the database"
    assert seen.is_error is True


def test_decorator_sets_the_side_effect_and_defaults_to_execute() -> None:
    @tool
    def one() -> None: ...

    @tool(side_effect="read", name="second", timeout=None)
    async def two() -> None: ...

    assert one.name == "one"
    assert one.side_effect == "execute"
    assert one.interruptible is False
    expected = ("second", "read", True, None)
    assert (two.name, two.side_effect, two.interruptible, two.timeout) == expected
    box = gather_tools([one, two, add])
    assert [each.side_effect for each in box] == ["execute", "read", "execute"]
    assert gather_tools(box) is box


@pytest.mark.parametrize(
    ("facts", "complaint"),
    [
        ({"side_effect": "reads"}, "side_effect: must be one of"),
        ({"timeout": 0}, "timeout: must be seconds above 0"),
        ({"output_limit": 10}, "output_limit: must be at least 200"),
    ],
)
def test_invalid_tool_settings_are_rejected(facts: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        FunctionTool(add, **facts)


def test_invalid_schema_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"p.parameters is not a valid JSON Schema"):
        ProcessTool(Tool("p", "", parameters={"type": "objekt"}), ["true"])


@given(st.text(max_size=600), st.integers(200, 400))
def test_long_text_is_marked_where_it_is_truncated(text: str, limit: int) -> None:
    cut, missing = cut_text(text, limit)
    assert len(cut) <= limit
    if len(text) <= limit:
        assert cut == text
        assert missing == 0
    else:
        head, _, tail = cut.partition(f"\n[... {missing} of {len(text)} characters left out here")
        tail = tail.partition("...]\n")[2]
        assert text.startswith(head)
        assert text.endswith(tail)
        assert len(head) + len(tail) + missing == len(text)


def test_truncated_output_reports_the_hash_and_size_of_the_original() -> None:
    whole = "x" * 5000
    seen = limit_output(Observation(whole), 1000)
    assert seen.truncated
    assert seen.details["sha256"] == hashlib.sha256(whole.encode()).hexdigest()
    assert seen.details["left_out_characters"] == 5000 - 900
    short = Observation("fine")
    assert limit_output(short, 1000) is short


def test_lone_surrogate_in_output_is_replaced_and_counted() -> None:
    seen = limit_output(Observation("a\ud800b"), 1000)
    assert seen.content == "a?b"
    assert seen.details == {"replaced_characters": 1}
    assert not seen.truncated


def test_text_blocks_share_one_output_limit_and_media_are_never_truncated() -> None:
    small = Image(Inline("A" * 12), "image/png")
    large = Image(Inline("A" * 9_000_000), "image/png")
    seen = limit_output(Observation((Text("x" * 900), Text("y" * 900), small, large)), 1000)
    assert seen.truncated
    first, second, third, fourth = seen.content
    assert first == Text("x" * 900)
    assert third == small
    assert "left out here" in second.text  # type: ignore[union-attr]
    assert fourth == Text("[image left out: it has 9000000 characters; the limit is 8388608]")


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        (Image(Inline("not base64!!"), "image/png"), "its data is not base64"),
        (Image(Inline("aGk="), "text/html"),
         "it.media_type must be an image type, not 'text/html'"),
        (Image(Inline("aGk="), "image/png\r\nx: y"), "its media type is 'image/png\\r\\nx: y'"),
        (Image(Inline(""), "image/png"), "it.source.base64_data is empty"),
        (Image(Url("javascript:alert(1)")), "its URL is neither http: nor data:"),
        (Image(Url("file:///etc/passwd")), "its URL is neither http: nor data:"),
    ],
)  # fmt: skip
def test_media_that_no_provider_accepts_are_omitted(block: Image, problem: str) -> None:
    seen = limit_output(Observation((Text("Look: "), Text(""), block)), 1000)
    assert seen.content == (Text("Look: "), Text(f"[image left out: {problem}]"))
    assert seen.truncated


SCHEMA = {"type": "object", "properties": {"word": {"type": "string"}, "n": {"type": "integer"}}}
PYTHON = [sys.executable, "-c"]


def program(code: str, *rest: str, **settings: Any) -> ProcessTool:
    return ProcessTool(Tool("p", "", parameters=SCHEMA), [*PYTHON, code, *rest], **settings)


async def test_program_result_has_exit_code_stdout_and_stderr() -> None:
    code = "import sys; print('out', sys.argv[1:]); print('err', file=sys.stderr); sys.exit(3)"
    seen = await run(program(code, "{word}", "n={n}"), word="a; ls $HOME", n=4)
    assert (
        seen.content == "exit code: 3\n--- stdout\nout ['a; ls $HOME', 'n=4']\n\n--- stderr\nerr\n"
    )
    assert seen.is_error is True
    assert seen.truncated is False
    assert seen.exit_code == 3
    assert seen.details == {"stdout_bytes": 27, "stderr_bytes": 4}


async def test_program_receives_its_input_as_json() -> None:
    seen = await run(program("import sys; print(sys.stdin.read())", stdin="json"), word="ü", n=1)
    assert '{"word":"ü","n":1}' in seen.content


async def test_program_that_does_not_read_its_input_works() -> None:
    seen = await run(program("pass", stdin="json"), word="x" * 1_000_000)
    assert seen.exit_code == 0


async def test_program_does_not_receive_api_keys_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DRAGOMAN_API_KEY", "k-secret")
    seen = await run(program("import os; print(dict(os.environ))", env={"MINE": "1"}))
    assert "k-secret" not in seen.content
    assert "'MINE': '1'" in seen.content
    assert "PATH" in clean_environment()


@pytest.mark.parametrize(
    ("word", "complaint"),
    [
        ("--force", "word: must not begin with a dash"),
        ("a\x00b", "word: must not contain a NUL"),
        (None, "word: is required"),
    ],
)
def test_program_argument_cannot_be_parsed_as_an_option(word: Any, complaint: str) -> None:
    box = Toolbox([program("pass", "{word}")])
    expected = ("invalid_arguments", complaint)
    assert box.validate("p", {} if word is None else {"word": word}) == expected
    assert Toolbox([program("pass", "--word={word}")]).validate("p", {"word": "-x"}) is None
    assert Toolbox([program("pass", "{word}", options=True)]).validate("p", {"word": "-x"}) is None


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("ls -l", "must be a list"),
        ([], "must be a list"),
        (["ls", "{path}"], r"\{path\} is not a parameter of 'p'"),
    ],
)
def test_invalid_command_is_rejected(command: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        ProcessTool(Tool("p", "", parameters=SCHEMA), command)


async def test_error_names_a_program_that_does_not_exist() -> None:
    with pytest.raises(ToolFailure) as caught:
        await run(ProcessTool(Tool("p"), ["/no/such/program"]))
    expected = ("not_started", "/no/such/program: No such file or directory")
    assert (caught.value.kind, caught.value.message) == expected


async def test_large_output_is_truncated_with_a_mark() -> None:
    code = "import sys\nfor n in range(200000): sys.stdout.write('line %d ü\\n' % n)"
    seen = await run(program(code, output_limit=2000))
    assert seen.truncated
    assert isinstance(seen.content, str)
    assert len(seen.content) <= 2000
    assert "line 0 ü" in seen.content
    assert "line 199999 ü" in seen.content
    assert "bytes left out here" in seen.content
    assert "\ufffd" not in seen.content


async def gone(pid: int) -> None:
    """Wait until a process has ended, or is a zombie of its parent process."""
    await until(
        lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE,
        f"the end of process {pid}",
    )


@pytest.mark.parametrize("how", ["timeout", "cancel"])
async def test_no_process_runs_on_after_a_timeout_or_cancel(how: str, tmp_path: Path) -> None:
    """After a timeout or cancellation, neither the program nor its child processes keep running."""
    sign = tmp_path / "started"
    shell = ["/bin/sh", "-c", f"sleep 600 & echo $! > {sign}; wait"]
    running = asyncio.ensure_future(
        Toolbox([ProcessTool(Tool("p", "", parameters=SCHEMA), shell, timeout=PATIENCE)]).execute(
            "p", {}
        )
    )
    await until(lambda: sign.exists() and sign.read_text().endswith("\n"), "the program")
    if how == "cancel":
        running.cancel()
    else:
        with virtual_time():
            await asyncio.sleep(PATIENCE)
    with pytest.raises(ToolFailure if how == "timeout" else asyncio.CancelledError) as caught:
        await running
    if how == "timeout":
        assert f"still running after {PATIENCE:g} s" in str(caught.value)
    await gone(int(sign.read_text()))


async def test_background_process_of_a_program_does_not_delay_the_result() -> None:
    shell = "sleep 600 & echo $!"
    done = await arrival(run_process(["/bin/sh", "-c", shell]), "the result")
    assert done.exit_code == 0
    await gone(int(done.stdout))
