"""Type what people try in their first hour, mistakes included, and read the answers."""

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import dragoman as d
from dragoman.batches.options import read_options
from dragoman.cli import main
from dragoman.cli.schemas import read_schema
from dragoman.cli.templates import complete_template
from dragoman.tools import tool
from tests.rows import read_table

from .listed import Listed
from .server import Connection, answering, serve
from .test_sync import Background

PNG = d.Image(b"\x89PNG\r\n\x1a\n")


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_text_and_image_in_a_list_are_one_message() -> None:
    model = Listed("A cat.")
    await model.complete(["What is this?", PNG])
    assert model.requests[0].messages == (d.User("What is this?", PNG),)


async def test_decorated_function_is_offered_to_the_model_and_can_be_called() -> None:
    model = Listed("5")
    await model.complete("2 + 3?", tools=[add])
    assert model.requests[0].tools == (add.description,)
    assert add(2, 3) == 5


def test_synchronous_call_in_a_coroutine_warns() -> None:
    model = d.sync.SyncProvider(Listed("Hi", repeat=True))

    async def block() -> str:
        return model.complete("Hi").text

    with pytest.warns(RuntimeWarning, match="blocks the running event loop"):
        assert asyncio.run(block()) == "Hi"


@dataclass
class River:
    name: str


def weather(place: str) -> str:
    """Return the weather."""
    return place


def bare(a):  # type: ignore[no-untyped-def]
    """Do nothing."""


MISTAKES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "stream=True": (lambda m: m.complete("x", stream=True), "call .stream(...) in place of"),
    "images=": (lambda m: m.complete("x", images=[PNG]), 'User("...", Image("photo.png"))'),
    "timeouts= of a call": (lambda m: m.complete("x", timeouts=5), "pass timeout= in seconds"),
    "stop=": (lambda m: m.complete("x", stop="y"), 'write stop_sequences=["..."]'),
    "thinking=": (lambda m: m.complete("x", thinking={}), 'write reasoning="high"'),
    "output_type=": (lambda m: m.complete("x", output_type=int), "as response_schema="),
    "n=": (lambda m: m.complete("x", n=2), "gather() makes several calls"),
    "functions=": (lambda m: m.complete("x", functions=[bare]), "pass them as tools=[...]"),
    "a misspelt effort": (
        lambda m: m.complete("x", reasoning="hgih"),
        "reasoning must be off, none, minimal, low, medium, high, xhigh, max, or a number",
    ),
    "bytes": (lambda m: m.complete(b"x"), "decode text, or write User(Image(data))"),
    "a prompt in place of tools": (
        lambda m: m.complete("x", "Be brief."),
        "a system prompt is passed as system=",
    ),
    "a tool's name": (
        lambda m: m.complete("x", tools=[weather], tool_choice="weather"),
        "To force a tool, write ForceTool('weather')",
    ),
    "an instance as the schema": (
        lambda m: m.complete("x", response_schema=River("Rhine")),
        "write response_schema=River",
    ),
    "a function as tools": (lambda m: d.Session(m, weather), "write [...] around the one tool"),
    "a synchronous model": (
        lambda m: d.Session(d.sync.SyncProvider(m)),  # type: ignore[arg-type]
        "use dragoman.sync.Session",
    ),
    "a name in place of a model": (
        lambda _: d.Session("openai:gpt-5"),  # type: ignore[arg-type]
        "write Session(connect('openai:gpt-5'), ...)",
    ),
    "max_attempts=": (
        lambda m: d.Retry(m, max_attempts=3),  # type: ignore[call-arg]
        "write max_retries=, which does not count the first attempt",
    ),
    "a number as a header": (
        lambda _: d.connect("m", base_url="http://127.0.0.1:9/v1", headers={"a": 1}),  # type: ignore[dict-item]
        "headers: 'a' must be a string, not 1",
    ),
    "stop= of connect": (lambda _: d.connect("m", stop="x"), "write stop_sequences="),  # type: ignore[call-arg]
    "proxy= of connect": (lambda _: d.connect("m", proxy="x"), "HttpTransport(proxy=...)"),  # type: ignore[call-arg]
    "an embedded reranker": (
        lambda _: d.retrieval.connect_reranker("local"),
        "there is no embedded reranker",
    ),
    "max_tokens=-1": (lambda m: m.complete("x", max_tokens=-1), "max_tokens must be at least 1"),
    "a tool without hints": (
        lambda m: m.complete("x", tools=[bare]),
        "the parameter a has no type hint, which the model needs; write for example a: str",
    ),
    "texts in a list": (lambda m: m.complete(["x", "y"]), "write User(...) around it"),
    "cache by position": (
        lambda m: m.complete([d.User("x", True)]),  # type: ignore[arg-type]
        "messages[0].content[1] must be text, an Image, a Document or an Audio, not bool",
    ),
    "timeout= of connect": (lambda _: d.connect("m", timeout=5), "did you mean timeouts?"),  # type: ignore[arg-type]
    "LiteLLM's form of names": (
        lambda _: d.connect("anthropic/claude-sonnet-4-6"),
        "did you mean anthropic:claude-sonnet-4-6?",
    ),
    "a name without a vendor": (lambda _: d.connect("gpt-5"), "did you mean openai:gpt-5 or"),
}


@pytest.mark.parametrize(("call", "hint"), MISTAKES.values(), ids=MISTAKES)
async def test_error_shows_the_right_form(call: Callable[[Any], Any], hint: str) -> None:
    with pytest.raises((TypeError, d.ProviderError)) as caught:
        await call(Listed("Hi"))
    assert hint in str(caught.value)
    assert "would be refused again" not in str(caught.value)


OTHER_NAMES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "reply.content": (
        lambda m: m.complete("x").content,
        "write reply.text, or reply.message.content",
    ),
    "reply.choices": (lambda m: m.complete("x").choices, "write reply.text"),
    "reply.usage_metadata": (lambda m: m.complete("x").usage_metadata, "write reply.usage"),
    "model.chat": (lambda m: m.chat, "write model.complete(...)"),
    "model.provider.chat": (lambda m: m.provider.chat, "write model.complete(...)"),
    "model.provider.astream": (lambda m: m.provider.astream, "write model.stream(...)"),
}


@pytest.mark.parametrize(("use", "hint"), OTHER_NAMES.values(), ids=OTHER_NAMES)
def test_name_of_another_library_is_answered_with_ours(
    use: Callable[[Any], Any], hint: str
) -> None:
    with pytest.raises(AttributeError, match=re.escape(f"; {hint}")):
        use(d.sync.SyncProvider(Listed("Hi")))


def test_wrong_attribute_has_the_message_of_python_and_reads_no_hint() -> None:
    model = Listed("Hi")
    with pytest.raises(AttributeError, match=r"^'Listed' object has no attribute 'colour'$"):
        model.colour  # type: ignore[attr-defined]  # noqa: B018


def test_reply_used_like_a_dictionary_names_its_attributes() -> None:
    reply: Any = d.sync.SyncProvider(Listed("Hi")).complete("x")
    with pytest.raises(TypeError, match=r"write reply\.text"):
        reply["text"]


async def test_model_in_the_wrong_kind_of_with_names_the_right_one() -> None:
    model: Any = Listed("Hi")
    with pytest.raises(TypeError, match=r"use 'async with', or dragoman\.sync\.connect"), model:
        pass
    with pytest.raises(TypeError, match=r"use 'with', or dragoman\.connect"):
        async with d.sync.SyncProvider(model):  # type: ignore[attr-defined]
            pass


def priced() -> d.Provider:
    return d.connect("m", base_url="http://127.0.0.1:9/v1", priced_as="free")


CONNECT: dict[str, Callable[..., Any]] = {
    "connect": d.connect,
    "connect_embedder": d.connect_embedder,
    "connect_reranker": d.connect_reranker,
}
RENAMED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "Budget(usd=)": (lambda _: d.Budget(usd=5).cost_usd == 5, "write cost_usd= in place of usd="),  # type: ignore[call-arg]
    "Spend(cost_usd=)": (
        lambda _: d.Spend(priced(), cost_usd=5).wallet.usd == 5,  # type: ignore[call-arg]
        "write usd= in place of cost_usd=",
    ),
    "Wallet(cost_usd=)": (
        lambda _: d.Wallet(cost_usd=5).usd == 5,  # type: ignore[call-arg]
        "write usd= in place of cost_usd=",
    ),
    **{
        f"{name}(max_retries=)": (
            lambda _, connect=connect: (
                "Retry"
                in d.describe(connect("m", base_url="http://127.0.0.1:9/v1", max_retries=5))
            ),
            f"{name}: write retries= in place of max_retries=",
        )
        for name, connect in CONNECT.items()
    },
    "batch(max_retries=)": (
        lambda _: read_options({"max_retries": 5}).retries == 5,
        "batch: write retries= in place of max_retries=",
    ),
    "Retry(retries=)": (
        lambda m: "max_retries=5" in d.describe(d.Retry(m, retries=5)),  # type: ignore[call-arg]
        "write max_retries= in place of retries=",
    ),
    "Session(approver=)": (
        lambda m: d.Session(m, approver="wait").budget is not None,  # type: ignore[call-arg]
        "write approve= in place of approver=",
    ),
    "sync.Session(approver=)": (
        lambda m: d.sync.Session(m, approver="wait") is not None,  # type: ignore[call-arg]
        "write approve= in place of approver=",
    ),
}


@pytest.mark.parametrize(("call", "hint"), RENAMED.values(), ids=RENAMED)
def test_other_name_of_a_setting_is_accepted_with_a_hint(
    call: Callable[[Any], Any], hint: str
) -> None:
    with pytest.warns(UserWarning, match=re.escape(hint)):
        assert call(Listed("Hi"))


def test_setting_that_is_given_by_both_names_is_an_error() -> None:
    with pytest.raises(TypeError, match="write cost_usd="):
        d.Budget(usd=5, cost_usd=6)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="write retries="):
        d.connect("m", base_url="http://127.0.0.1:9/v1", retries=5, max_retries=6)  # type: ignore[call-arg]


async def test_other_name_of_a_setting_is_refused_with_the_right_one(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"pass retries= to connect\(\)"):
        await Listed("Hi").complete("x", max_retries=5)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="usd=5"):
        await Listed("Hi").complete("x", budget=5)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match=r"'cost_usd' is not one of .*; write usd=5"):
        await d.batch([{"prompt": "x"}], tmp_path / "out", Listed("Hi"), budget={"cost_usd": 5})
    refused = CliRunner().invoke(main, ["agent", "x", "--budget", "cost_usd=5"])
    assert "--budget cost_usd=5: must be one of" in refused.output
    assert "write usd=5" in refused.output


def test_file_that_is_not_an_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes(b"<html>Not found</html>")
    with pytest.raises(ValueError, match=r"photo\.png is not an image, although .* b'<html>"):
        d.Image(tmp_path / "photo.png")
    (tmp_path / "program").write_bytes(b"\x7fELF")
    with pytest.raises(ValueError, match="program is not an image: it begins with"):
        d.Image(tmp_path / "program")
    (tmp_path / "photo.png").write_bytes(b"\xff\xd8\xff\xe0")
    assert d.Image(tmp_path / "photo.png").media_type == "image/jpeg"


async def test_refusal_of_a_country_does_not_blame_the_key() -> None:
    body = b'{"error": {"message": "Country, region, or territory not supported"}}'

    async def answer(connection: Connection) -> None:
        connection.reply(403, body)

    async with serve(answer) as server, d.connect("m", base_url=f"{server.url}/v1") as model:
        with pytest.raises(d.AuthenticationError, match="another key does not help"):
            await model.complete("x")


async def test_stream_used_without_async_names_the_right_form() -> None:
    stream: Any = Listed("Hi").stream("x")
    with pytest.raises(TypeError, match="use 'async for'"):
        list(stream)
    with pytest.raises(TypeError, match=r"use 'async with', or dragoman\.sync"), stream:
        pass
    with pytest.raises(TypeError, match="use 'async for event in stream'"):
        await stream
    await stream.aclose()


PAGE = b"<!doctype html><html><head><title>Sign in\n to Corp</title></head></html>"
REPLIES: dict[str, tuple[int, bytes, dict[str, str], str]] = {
    "a login page": (200, PAGE, {}, "an HTML page came instead of a reply, with the title 'Sign in to Corp'"),
    "a page without a title": (200, b"\n<html></html>", {}, "an HTML page came instead of a reply. "),
    "a wrong path": (404, b'{"detail": "Not Found"}', {}, "Check base_url: {url}/v2/chat/completions was asked."),
    "a redirect": (301, b"", {"location": "https://u:pw@other.test/v1?key=secret"},
                   "It redirects to https://other.test/v1. Check base_url: {url}/v2/chat/completions was asked."),
}  # fmt: skip


@pytest.mark.parametrize(("status", "body", "headers", "text"), REPLIES.values(), ids=REPLIES)
async def test_reply_that_is_not_from_a_model_is_explained(
    status: int, body: bytes, headers: dict[str, str], text: str
) -> None:
    async def answer(connection: Connection) -> None:
        connection.reply(status, body, "text/html", **headers)

    async with (
        serve(answer) as server,
        d.connect("m", base_url=f"{server.url}/v2") as model,
    ):
        with pytest.raises(d.ProviderError) as caught:
            await model.complete("x")
        assert text.format(url=server.url) in str(caught.value)
        assert "secret" not in str(caught.value)


async def test_call_that_never_left_the_machine_is_not_charged() -> None:
    async with d.connect(
        "m", base_url="http://nowhere.invalid/v1", priced_as="openai:gpt-5"
    ) as model:
        stream = model.stream("Hello there")
        with pytest.raises(d.NetworkError):
            await anext(aiter(stream))
        [*_, end] = stream.reply.cancel()
    assert end.usage == stream.reply.usage == d.Usage()


def run(*words: str, **variables: str) -> Result:
    return CliRunner().invoke(main, words, env=variables)


def test_ask_takes_model_and_system_prompt_as_options_and_continues(tmp_path: Path) -> None:
    where = {"DRAGOMAN_LOG": str(tmp_path / "log.db")}
    with Background(answering("Hello")) as server:
        first = run(
            "ask", "-m", "m", "-s", "Be brief.", "Hi", "--base-url", server.base_url, **where
        )
        second = run("ask", "-c", "And then?", **where)
        bodies = [request.json for request in server.requests]
    assert first.exit_code == 0, second.stderr
    assert second.exit_code == 0, second.stderr
    talk = [("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello"), ("user", "And then?")]
    for body, count in zip(bodies, (2, 4), strict=True):
        assert body["model"] == "m"
        assert [(each["role"], each["content"]) for each in body["messages"]] == talk[:count]


def test_log_shows_zero_dollars_for_a_call_that_never_left_the_machine(tmp_path: Path) -> None:
    where = {"DRAGOMAN_LOG": str(tmp_path / "log.db")}
    failed = run("ask", "-m", "m", "Hi", "--base-url", "http://nowhere.invalid", **where)
    assert failed.exit_code == 14
    [_, row] = run("log", "list", **where).output.splitlines()
    assert row.split()[3:6] == ["nowhere.invalid:m", "$0", "failed"]


COMMANDS = {
    "a misspelt command": [["aks", "Hi"], 2, "No such command 'aks'. Did you mean 'ask'?"],
    "an unlike command": [["xyzzy"], 2, "No such command 'xyzzy'.\n"],
    "the model twice": [["ask", "-m", "m", "m", "Hi"], 2, "named twice: by MODEL and by -m"],
    "the model twice in a chat": [["chat", "-m", "m", "m"], 2, "named twice: by MODEL and by -m"],
    "nothing to continue": [["ask", "-c", "Hi"], 20, "no log exists here"],
    "a search for models": [["models", "search", "gemini-2.5-pro"], 0, "google:gemini-2.5-pro"],
    "a misspelt vendor": [
        ["keys", "set", "opnai"],
        2,
        "opnai is not a known vendor; did you mean openai?",
    ],
    "a setting of the wrong type": [
        ["ask", "-m", "openai:gpt-5", "-o", "temperature", "hot", "Hi"],
        2,
        "-o temperature hot: wrong setting: expected a number, got text",
    ],
    "a name without a model": [["serve", "--model", "fast"], 2, "write fast=vendor:model"],
    "the path of models.yaml": [["config", "path"], 0, "models.yaml"],
}


@pytest.mark.parametrize(("words", "code", "text"), COMMANDS.values(), ids=COMMANDS)
def test_command_of_a_newcomer_works_or_names_the_right_one(
    words: list[str], code: int, text: str, tmp_path: Path
) -> None:
    result = run(*words, DRAGOMAN_LOG=str(tmp_path / "log.db"))
    assert text in result.output, result.output
    assert result.exit_code == code, result.output


def test_error_names_the_variable_that_a_model_comes_from(tmp_path: Path) -> None:
    where = {"DRAGOMAN_LOG": str(tmp_path / "log.db"), "DRAGOMAN_MODEL": "nope"}
    result = run("ask", "Hi there", **where)
    assert result.exit_code == 11
    assert "the name comes from the variable DRAGOMAN_MODEL" in " ".join(result.output.split())
    given = run("ask", "-m", "nix", "Hi", **where)
    assert "DRAGOMAN_MODEL" not in given.output


def test_template_with_an_unknown_column_is_refused_before_the_first_row(tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("name,text\nRhine,long\n")
    out = tmp_path / "out.jsonl"
    batch = ["batch", str(rows), str(out), "--model", "openai:gpt-5", "--template"]
    result = run(*batch, "Describe {nam}", OPENAI_API_KEY="sk-1234567890")
    assert result.exit_code == 2
    assert "template: the file has no column 'nam'; did you mean name?" in result.output
    result = run(*batch, "Describe {river}", OPENAI_API_KEY="sk-1234567890")
    assert "no column 'river'; its columns are name, text" in result.output
    assert not out.exists()


def test_interrupt_while_a_command_is_loaded_ends_like_a_later_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("importlib.import_module", interrupt)
    result = CliRunner().invoke(main, ["ask", "Hi"])
    assert result.stderr == "interrupted\n"
    assert result.exit_code == 130


IMAGE = {"type": "image", "source": {"type": "url", "url": "https://example.test/a.png"}}
PLANS: dict[str, tuple[list[Any], str, int, str]] = {
    "all is sent": ([{"role": "user", "content": "Hi"}], "openai:gpt-5", 0, "1 kept, 0 rewritten"),
    "reasoning is lost": (
        [{"role": "user", "content": "Hi"},
         {"role": "assistant", "content": [{"type": "thinking", "text": "hm"}]},
         {"role": "user", "content": "Bye"}],
        "openai:gpt-5", 31, "2 dropped",
    ),
    "an image is refused": (
        [{"role": "user", "content": [IMAGE]}],
        "ollama:llama3", 32, "refused, nothing would be sent: ",
    ),
    "a text does not fit": (
        [{"role": "user", "content": "word " * 20_000}], "local", 32, "IT DOES NOT FIT",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("talk", "to", "code", "text"), PLANS.values(), ids=PLANS)
def test_plan_command_shows_the_outcome_and_sets_the_exit_code(
    talk: list[Any], to: str, code: int, text: str, tmp_path: Path
) -> None:
    (tmp_path / "talk.json").write_text(json.dumps(talk))
    result = run("plan", str(tmp_path / "talk.json"), "--to", to)
    assert text in result.output, result.output
    assert result.exit_code == code, result.output
    assert ("kept" in result.output) == ("refused" not in result.output)
    record = json.loads(run("plan", str(tmp_path / "talk.json"), "--to", to, "--json").output)
    assert (record["refused"] is None) == bool(record["items"])


SCHEMAS: dict[str, tuple[str, dict[str, Any]]] = {
    "types": (
        "name, age int, weight float, alive bool, bio str",
        {"name": "string", "age": "integer", "weight": "number", "alive": "boolean", "bio": "string"},
    ),
    "a list": ("tags [str],ages [ int ]", {"tags": ["string"], "ages": ["integer"]}),
}  # fmt: skip


@pytest.mark.parametrize(("text", "fields"), SCHEMAS.values(), ids=SCHEMAS)
def test_list_of_fields_becomes_the_answer_schema(text: str, fields: dict[str, Any]) -> None:
    made = {
        name: {"type": "array", "items": {"type": kind[0]}}
        if isinstance(kind, list)
        else {"type": kind}
        for name, kind in fields.items()
    }
    assert read_schema(text) == {
        "type": "object", "properties": made, "required": list(fields),
        "additionalProperties": False,
    }  # fmt: skip


def test_fields_of_the_answer_are_sent_as_its_schema(tmp_path: Path) -> None:
    with Background(answering('{"name": "Rhine"}')) as server:
        where = ["--base-url", server.base_url, "--no-log"]
        result = run("ask", "-m", "m", "A river?", "--schema", "name", *where)
        body = server.requests[0].json
    assert result.exit_code == 0, result.stderr
    assert body["response_format"]["json_schema"]["schema"] == read_schema("name")


WRONG_FIELDS = {
    "an unknown type": ["age number", "'age number' is not a field. Write NAME, NAME TYPE"],
    "an open bracket": ["tags [str", "'tags [str' is not a field"],
    "an empty field": ["name,,age", "'' is not a field"],
    "a field twice": ["name, name int", "the field 'name' is there twice"],
    "a missing file": ["schemas/river", "the file schemas/river does not exist"],
}


@pytest.mark.parametrize(("text", "message"), WRONG_FIELDS.values(), ids=WRONG_FIELDS)
def test_wrong_fields_of_a_schema_are_explained(text: str, message: str) -> None:
    result = run("ask", "-m", "m", "Hi", "--schema", text)
    assert message in result.output, result.output
    assert result.exit_code == 2, result.output


@pytest.fixture
def templates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the templates, of which one exists."""
    (tmp_path / "models.yaml").touch()
    monkeypatch.setenv("DRAGOMAN_CONFIG", str(tmp_path / "models.yaml"))
    saved = run(
        "templates", "save", "translate", "{input}", "-m", "tiny", "-p", "language", "French",
        "-s", "Translate into {language}. Style: {style}.", "--schema", "text",
    )  # fmt: skip
    assert saved.output == f"{tmp_path / 'templates' / 'translate.yaml'}\n"
    return tmp_path / "templates"


def test_template_is_filled_and_sent(templates: Path) -> None:
    with Background(answering('{"text": "Bonjour"}')) as server:
        where = ["--base-url", server.base_url, "--no-log"]
        first = run("ask", "-t", "translate", "-p", "style", "{plain}", "Good morning", *where)
        second = run(
            "ask", "-t", "translate", "-p", "style", "plain", "-p", "language", "Greek", "Hi",
            "-m", "m", "-s", "Be brief.", "--schema", "word", *where,
        )  # fmt: skip
        bodies = [request.json for request in server.requests]
    assert first.exit_code == 0, first.stderr
    assert second.exit_code == 18, first.stderr
    assert [body["model"] for body in bodies] == ["tiny", "m"]
    expected = [["Translate into French. Style: {plain}.", "Good morning"], ["Be brief.", "Hi"]]
    assert [[each["content"] for each in body["messages"]] for body in bodies] == expected


def test_each_line_of_a_chat_is_written_into_a_template(templates: Path) -> None:
    run("templates", "save", "poet", "Rhyme: {input}", "-m", "tiny", "-s", "Be {mood}.")
    with Background(answering("Yes.")) as server:
        words = ["chat", "-t", "poet", "-p", "mood", "calm", "--base-url", server.base_url]
        result = CliRunner().invoke(main, [*words, "--no-log"], input="Sea\nSky\n")
        bodies = [request.json for request in server.requests]
    assert result.exit_code == 0, result.output
    assert [body["model"] for body in bodies] == ["tiny", "tiny"]
    assert [each["content"] for each in bodies[1]["messages"]] == [
        "Be calm.", "Rhyme: Sea", "Yes.", "Rhyme: Sky"
    ]  # fmt: skip


def test_text_comes_before_a_template_without_input(templates: Path) -> None:
    run("templates", "save", "sum", "Summarise this.")
    with Background(answering("Short.")) as server:
        result = CliRunner().invoke(
            main,
            ["ask", "-m", "m", "-t", "sum", "--base-url", server.base_url, "--no-log"],
            input="A long text",
        )
        [request] = server.requests
    assert result.exit_code == 0, result.stderr
    assert request.json["messages"] == [
        {"role": "user", "content": "A long text\n\nSummarise this."}
    ]


def test_templates_are_listed_and_shown(templates: Path) -> None:
    listed = run("templates", "list").output
    assert "translate  language, style  tiny   {input}" in listed
    record = {
        "model": "tiny", "system": "Translate into {language}. Style: {style}.",
        "prompt": "{input}", "schema": "text", "defaults": {"language": "French"},
    }  # fmt: skip
    assert json.loads(run("templates", "list", "--json").output) == {"translate": record}
    assert json.loads(run("templates", "show", "translate", "--json").output) == record
    assert "language: French" in run("templates", "show", "translate").output
    assert complete_template(click.Context(main), click.Argument(["name"]), "tr") == ["translate"]


def test_template_is_edited_in_an_editor(templates: Path) -> None:
    edit = run("templates", "edit", "new", EDITOR="sed -i s/Translate/Rewrite/")
    assert edit.exit_code == 0, edit.output
    assert "system: Rewrite into {language}." in (templates / "new.yaml").read_text()
    broken = run("templates", "edit", "new", EDITOR="sed -i s/prompt:/promt:/")
    assert "`promt`" in broken.output, broken.output
    assert broken.exit_code == 2, broken.output
    assert "promt:" in (templates / "new.yaml").read_text()
    unsaved = run("templates", "edit", "other", EDITOR="true")
    assert unsaved.output == "nothing was saved\n"
    assert unsaved.exit_code == 0
    assert not (templates / "other.yaml").exists()


WRONG_TEMPLATES = dict(read_table("template_mistakes"))


@pytest.mark.parametrize(("words", "text"), WRONG_TEMPLATES.values(), ids=WRONG_TEMPLATES)
def test_mistake_with_a_template_is_explained(words: str, text: str, templates: Path) -> None:
    result = run(*words.split(" "))
    assert text in result.output, result.output
    assert result.exit_code == 2, result.output
