"""A server echoes canary keys in every part of its replies, and no output of Dragoman shows a key.

The canaries do not look like keys, so no pattern can find them. They can be removed only by their
known values.
"""

import json
import logging
import pickle
import runpy
import sys
import traceback
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import dragoman
from dragoman import Observe, Policy, Provider, Record, Retry, Session
from dragoman.cli import main
from dragoman.gateway.app import create_app
from dragoman.gateway.keys import Key, KeyRing, hash_key
from dragoman.log import SqliteLog
from dragoman.middleware import describe
from dragoman.middleware.otel import OpenTelemetry
from dragoman.registry import Registry
from dragoman.wire import CODECS

from ..gateway.upstream import BODIES
from ..server import Connection, Server, completion, serve
from ..test_sync import Background
from ..waiting import PATIENCE
from .gateway_app import PATHS, post

KEY = "QCANARYQ7f3a9b2c4d5e"
HEADER = "QHEADERQ88aa77bb66"
CLIENT = "QCLIENTQ1122334455"
ROOT = Path(__file__).parents[2]
SETTINGS = {"max_tokens": 9}


class Search:
    """A search for canary secrets: the number of places searched, and the places that
    contain one.
    """

    def __init__(self) -> None:
        self.looked = 0
        self.found: list[str] = []

    def look(self, where: str, artefact: object) -> None:
        self.looked += 1
        text = artefact if isinstance(artefact, str) else repr(artefact)
        for canary in (KEY, HEADER, CLIENT):
            if canary in text:
                at = text.index(canary)
                self.found.append(f"{where}: {text[max(0, at - 60) : at + 30]!r}")

    def look_at_error(
        self, where: str, error: BaseException | None, seen: set[int] | None = None
    ) -> None:
        """Search everything that an error reporter sends: texts, attributes, causes and local
        variables of frames.
        """
        seen = set() if seen is None else seen
        if error is None or id(error) in seen:
            return
        seen.add(id(error))
        kept = {name: value for name, value in vars(error).items() if name != "response"}
        self.look(
            f"{where}: error", "\n".join([str(error), repr(error), repr(error.args), repr(kept)])
        )
        trace = traceback.TracebackException.from_exception(error, capture_locals=True)
        ours = [frame for frame in trace.stack if "/src/dragoman/" in frame.filename]
        self.look(f"{where}: locals", "\n".join([repr(frame.locals) for frame in ours]))
        self.look_at_error(f"{where}, cause", error.__cause__, seen)
        self.look_at_error(f"{where}, context", error.__context__, seen)

    def look_at_files(self, folder: Path) -> None:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.name != "models.yaml":
                self.look(path.name, path.read_bytes().decode("latin-1"))


@pytest.fixture
def search(caplog: pytest.LogCaptureFixture) -> Iterator[Search]:
    """Yield a search that fails the test if it finds a secret; all log output is searched at the
    end.
    """
    caplog.set_level(1)
    for name in ("asyncio", "dragoman"):
        logging.getLogger(name).setLevel(1)
    made = Search()
    yield made
    for name in ("asyncio", "dragoman"):
        logging.getLogger(name).setLevel(logging.NOTSET)
    made.look("log", caplog.text)
    assert made.found == []


UNREADABLE = {  # JSON and an event that break off after the key
    "garbage": '{{"echo": "{}',
    "nested": '{{"message": [["{}"]], "choices": 5',
    "event": 'data: {{"x": "{}"',
}
ECHOES = ("ok", "401", "400", "500", "html", "headers", *UNREADABLE, "stream", "location")


async def echo(connection: Connection) -> None:
    """Answer in the way that the model name or URL path selects, with all request headers in every
    part of the reply.
    """
    heard = "\n".join(f"{name}: {value}" for name, value in connection.seen.headers.items())
    body = connection.seen.body.decode()
    kind = next((each for each in ECHOES if f"echo-{each}" in connection.seen.path + body), "ok")
    error = {"message": f"Incorrect key: {heard}", "code": heard, "type": heard, "status": heard}
    refusal = json.dumps({"error": error}).encode()
    if kind == "ok":
        connection.reply(200, completion("Hi"), x_request_id=KEY, set_cookie=KEY)
    elif kind in ("401", "500"):
        connection.reply(int(kind), refusal, retry_after="0")
    elif kind == "400":
        long = {
            "message": "x" * 3990 + heard,
            "code": connection.seen.headers.get("authorization", heard),
        }
        connection.reply(400, json.dumps({"error": long}).encode())
    elif kind == "html":
        connection.reply(502, f"<html>{heard}</html>".encode(), "text/html", retry_after="0")
    elif kind == "headers":
        given = {
            "x_request_id": KEY,
            "x_ratelimit_limit": HEADER,
            "request_id": f"Bearer {KEY}",
            "date": KEY,
        }
        connection.reply(429, b'{"error":{"message":"slow"}}', retry_after="0", **given)
    elif kind in UNREADABLE:
        connection.reply(200, UNREADABLE[kind].format(repr(heard)[1:4000]).encode())
    elif kind == "stream":
        connection.reply(200, b"data: " + refusal + b"\n\n", "text/event-stream")
    else:
        connection.reply(302, b"", location=f"http://127.0.0.1:9/?key={KEY}")


def open_model(server: Server, kind: str, wire: str = "openai") -> Provider:
    url = server.base_url if wire != "gemini" else server.url
    return dragoman.connect(
        f"echo-{kind}",
        wire=wire,
        base_url=url,
        api_key=KEY,
        headers={"x-secret": HEADER},
        timeouts=PATIENCE,
    )


async def drain(model: Provider) -> Any:
    stream = model.stream("Hi", config=SETTINGS)
    async for _ in stream:
        pass
    return stream.response


@pytest.mark.parametrize("wire", sorted(CODECS))
async def test_calls_leak_no_secret(wire: str, search: Search) -> None:
    events: list[Any] = []
    spans = InMemorySpanExporter()
    tracing = TracerProvider()
    tracing.add_span_processor(SimpleSpanProcessor(spans))
    async with serve(echo) as server:
        for kind in ECHOES:
            model = open_model(server, kind, wire)
            watched = Observe(model, events.append, OpenTelemetry(tracing), include_content=True)
            parts = [model, vars(model), vars(vars(model)["codec"]), describe(Retry(watched))]
            search.look("representations", "\n".join(map(repr, parts)))
            with pytest.raises((TypeError, AttributeError, pickle.PicklingError)) as pickled:
                pickle.dumps(model)
            search.look("pickle", str(pickled.value))
            for name, call in (
                ("complete", watched.complete("Hi", config=SETTINGS)),
                ("stream", drain(watched)),
                ("ready", model.ready()),
            ):
                try:
                    reply = await call
                    search.look("reply", repr(reply) if kind == "ok" else "")
                except dragoman.ProviderError as error:
                    search.look_at_error(f"{wire} {kind} {name}", error)
            await watched.close()
        assert any(KEY in str(seen.headers) for seen in server.requests), "the key was sent"
        assert not any(KEY in seen.path for seen in server.requests)
    async with open_model(server, "ok", wire) as unreachable:
        with pytest.raises(dragoman.NetworkError) as lost:
            await unreachable.complete("Hi", config=SETTINGS)
    search.look_at_error(f"{wire} unreachable", lost.value)
    search.look("observed", repr(events))
    search.look("spans", "".join([span.to_json() for span in spans.get_finished_spans()]))
    assert search.looked > 60


async def test_cassettes_sessions_and_exports_contain_no_secret(
    search: Search, tmp_path: Path
) -> None:
    async with serve(echo) as server:
        for kind in ECHOES:
            folder = tmp_path / kind
            folder.mkdir()
            model = open_model(server, kind)
            try:
                await Record(model, folder / "cassette.jsonl", mode="record").complete("Hi")
            except dragoman.ProviderError as error:
                search.look_at_error(f"cassette {kind}", error)
            async with model, SqliteLog(folder / "log.db") as log:
                try:
                    retried = Retry(model, max_retries=1)
                    await Session(retried, [], Policy(), log, session_id="s", keep_raw=True).run(
                        "Go"
                    )
                except dragoman.ProviderError as error:
                    search.look_at_error(f"session {kind}", error)
                log.export(folder / "export.jsonl")
                search.look_at_files(folder)  # the files include the write-ahead log
    assert len(list(tmp_path.rglob("*.jsonl"))) >= len(ECHOES)
    search.look_at_files(tmp_path)
    assert search.looked > 30


CONFIG = """
adapters:
  up:
    type: openai
    api_key: {key}
    base_url: {url}
    extra_headers: {{X-Secret: {header}}}
models:
{models}
"""


def write_config(path: Path, server: Server) -> Path:
    models = "\n".join(f"  up:echo-{kind}: {{}}" for kind in ECHOES)
    path.write_text(CONFIG.format(key=KEY, header=HEADER, url=server.base_url, models=models))
    return path


@pytest.mark.parametrize("wire", PATHS)
async def test_gateway_leaks_no_secret(wire: str, search: Search, tmp_path: Path) -> None:
    async with serve(echo) as server:
        registry = Registry.load(write_config(tmp_path / "models.yaml", server))
        search.look(
            "registry", repr(registry) + repr(vars(registry)) + repr(registry.adapter("up"))
        )
        models = {f"m-{kind}": registry.provider(f"up:echo-{kind}") for kind in ECHOES}
        keys = KeyRing([Key("ann", hash_key(CLIENT))])
        app = create_app(models, keys=keys)
        search.look("gateway", repr(app.state.service) + repr(keys.keys))
        ours = (
            {"x-goog-api-key": CLIENT}
            if wire == "gemini"
            else {"authorization": f"Bearer {CLIENT}"}
        )
        for kind in ECHOES:
            for stream in (False, True):
                body = {**BODIES[wire]}
                path = PATHS[wire]
                if wire == "gemini":
                    verb = "streamGenerateContent" if stream else "generateContent"
                    path = f"/v1beta/models/m-{kind}:{verb}"
                else:
                    body |= {"model": f"m-{kind}", "stream": stream}
                answer = await post(app, wire, json.dumps(body).encode(), path=path, headers=ours)
                assert answer.status == 200 or kind != "ok", answer
                search.look(f"{wire} {kind} {stream}", repr(answer))
        await app.state.service.models.close()
        assert server.requests
        assert not any(CLIENT in str(seen.headers) for seen in server.requests), (
            "a client's key is not passed on"
        )
    search.look("metrics", app.state.service.metrics.text())


COMMANDS = [
    *(["ask", f"up:echo-{kind}", "hi", *more] for kind in ECHOES for more in ([], ["--json"])),
    ["models", "up:*"],
    ["models", "up:echo-ok", "--json"],
    ["config", "check"],
    ["config", "show"],
    ["ready", "up:echo-ok"],
    ["ready", "up:echo-401"],
    ["agent", "go", "--model", "up:echo-401", "--log", "LOG"],
    ["agent", "go", "--model", "up:echo-ok", "--log", "LOG", "--json"],
    ["agent", "go", "--model", "up:echo-ok", "--log", f"postgresql://u:{KEY}%zz@127.0.0.1:1/x"],
    ["log", "list", "--log", "LOG"],
    ["log", "show", "last", "--log", "LOG"],
    ["log", "list", "--log", f"postgresql://u:{KEY}@127.0.0.1:bad/x"],
    ["cost", "--log", "LOG"],
]


def test_command_line_prints_no_secret(
    search: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OPENAI_API_KEY", CLIENT)
    with Background(echo) as server:
        monkeypatch.setenv("DRAGOMAN_CONFIG", str(write_config(tmp_path / "models.yaml", server)))
        for command in COMMANDS:
            words = [str(tmp_path / "log.db") if word == "LOG" else word for word in command]
            result = CliRunner().invoke(main, words)
            shown = " ".join(command[:3])
            assert result.exception is None or isinstance(result.exception, SystemExit), shown
            search.look(shown, result.output)
        assert len(server.requests) > len(ECHOES)
    search.look_at_files(tmp_path)
    assert search.looked > len(COMMANDS)


def test_bill_of_materials_contains_no_secret(
    search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(sys, "argv", ["sbom", KEY])
    build = runpy.run_path(str(ROOT / "scripts/sbom.py"))["build"]
    locks = [path.read_text() for path in ROOT.glob("requirements/*.lock")]
    search.look("bill", json.dumps(build(locks, distribution("dragoman"))))


def test_search_for_secrets_finds_planted_secrets() -> None:
    made = Search()
    error = dragoman.ProviderError("x")
    error.__cause__ = ValueError(KEY)
    made.look_at_error("here", error)
    made.look("there", {"a": HEADER})
    assert len(made.found) == 2
