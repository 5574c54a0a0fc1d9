"""Test the trace server: permitted clients, accepted queries, and the headers of every response."""

from __future__ import annotations

import json
import logging
import re
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from click.testing import CliRunner
from hypothesis import given, settings

from dragoman import log as logs
from dragoman.cli.log import command
from dragoman.log import SqliteLog
from dragoman.messages import User
from dragoman.replay import read_steps
from dragoman.trace import Reader, SessionFilter, TraceServer, export_html
from dragoman.trace.queries import trim
from tests.rows import read_table

from ..cli.terminal import Terminal
from ..story import EDIT, LEFT_OPEN, STORY, tell
from ..strategies import json_values
from ..waiting import PATIENCE
from .conftest import Served


def ask(
    url: str, method: str = "GET", body: bytes | None = None, **headers: str
) -> tuple[int, Any, dict[str, str]]:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, body, method=method, headers=names)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return (
                answer.status,
                answer.read(),
                {key.lower(): value for key, value in answer.headers.items()},
            )
    except urllib.error.HTTPError as error:
        with error:
            return (
                error.code,
                error.read(),
                {key.lower(): value for key, value in error.headers.items()},
            )


def test_request_without_the_token_is_rejected(log: SqliteLog, url: str) -> None:
    tell(log)
    root = re.sub(r"[^/]+/$", "", url)
    token = url.removeprefix(root).rstrip("/")
    assert len(token) >= 32
    assert ask(url)[0] == 200
    guesses = [
        "", "/", "x/", f"{token[:-1]}/", f"{token}x/", "api/sessions", "x/api/sessions",
        f"{token}/../x/",
    ]  # fmt: skip
    for guess in guesses:
        status, body, _ = ask(root + guess)
        assert status == 404, guess
        assert b"fix" not in body
    for odd in (quote("\u00fc\ud7ff"), "%FF%FE", "%ED%A0%80"):
        assert ask(root + odd + "/")[0] == 404


def test_request_with_another_host_header_is_rejected(url: str) -> None:
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "0.0.0.0"):
        assert ask(url + "api/sessions", Host=host)[0] in (400, 403), host
    assert ask(url + "api/sessions", Host="[::]:80")[0] in (400, 403)
    assert ask(url + "api/sessions", Host="localhost:1234")[0] == 200
    host, port = url.split("/")[2].split(":")
    path = url.partition(port)[2]
    with socket.create_connection((host, int(port)), 10) as client:
        hosts = f"host: {host}\r\nhost: {host}"
        client.sendall(f"GET {path} HTTP/1.1\r\n{hosts}\r\n\r\n".encode())
        assert client.recv(65536).startswith(b"HTTP/1.1 403 ")


def test_trace_server_rejects_methods_that_write(url: str) -> None:
    assert url.startswith("http://127.0.0.1:")
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
        assert ask(url + "api/sessions", method)[0] in (404, 405), method


def test_every_response_has_security_headers(url: str) -> None:
    pages = ("", "trace.css", "trace.js", "render.js", "nothing")
    for path in (*pages, "api/questions", "api/sessions", "api/record?session=x&seq=1"):
        _, _, headers = ask(url + path)
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "access-control-allow-origin" not in headers


def test_invalid_requests_are_rejected(log: SqliteLog, url: str) -> None:
    tell(log)
    for path, status, words in read_table("invalid_requests_are_rejected"):
        got, body, headers = ask(url + path)
        assert got == status, path
        assert headers["content-type"] == "application/json", path
        assert words in json.loads(body)["error"]


def test_error_is_reported_if_the_log_cannot_be_read(log: SqliteLog, url: str) -> None:
    log.close()
    got, body, _ = ask(url + "api/sessions")
    assert got == 500
    assert json.loads(body)["error"] == "the log is closed"


def test_trace_page_loads_nothing_from_other_servers() -> None:
    page = Path(sys.modules["dragoman.trace"].__file__ or "").parent / "page"
    unwanted = re.compile(
        r"https?://|@import|url\(|\.innerHTML|eval\(|insertAdjacentHTML|document\.write"
    )
    for file in page.iterdir():
        assert not unwanted.search(file.read_text("utf-8")), file.name
    assert "<script>" not in (page / "index.html").read_text()
    assert " style=" not in (page / "index.html").read_text()


def test_pages_of_a_session_together_equal_the_complete_session(log: SqliteLog) -> None:
    tell(log, "odd", STORY[:7] + STORY[8:] + STORY)
    reader = Reader(log)
    fresh = Reader(log)
    whole = [(step.seq, step.intent, list(step.notes)) for step in read_steps(log, "odd")]
    assert any(notes for *_, notes in whole)
    for each in (reader, fresh):
        paged = []
        after = 0
        while steps := each.read_page("odd", after, 7)["steps"]:
            paged += [
                (step["seq"], step.get("intent"), list(step.get("notes", []))) for step in steps
            ]
            after = steps[-1]["seq"]
            # One reader is used for all pages and keeps its cache; the other is created again for
            # each page.
            each = reader if each is reader else Reader(log)
        assert paged == whole
    # Reading a page twice returns the same steps, so reading does not change the cache.
    again = reader.read_page("odd", 7, 7)["steps"]
    assert [
        (step["seq"], step.get("intent"), list(step.get("notes", []))) for step in again
    ] == whole[7:14]


def test_session_list_can_be_searched_and_counts_matches(log: SqliteLog) -> None:
    tell(log, "fix")
    tell(log, "look", LEFT_OPEN)
    reader = Reader(log)
    assert [entry["session"] for entry in reader.list_sessions()["sessions"]] == ["look", "fix"]
    found = reader.list_sessions(SessionFilter(query="FI"))
    assert found["total"] == 1
    assert found["sessions"][0]["outcome"] == "completed"
    assert reader.list_sessions(None, 1, 1)["sessions"][0]["session"] == "fix"
    assert reader.check_chain("fix") == {"ok": True, "records": len(STORY), "break": None}


def test_huge_record_is_truncated_and_can_be_requested_in_full(log: SqliteLog) -> None:
    log.append_sync(
        "big", logs.ToolObserved(intent_id="tu", tool_name="bash", content="x" * 3_000_000)
    )
    reader = Reader(log)
    [step] = reader.read_page("big")["steps"]
    assert len(json.dumps(step)) < 10_000
    assert "characters more" in step["data"]["content"]
    record = reader.read_record("big", 1)
    assert record is not None
    assert len(record["text"]) == 200_000
    assert record["cut"] > 2_000_000
    whole = reader.find_record("big", 1)
    assert whole is not None
    assert len(whole.line) == record["bytes"]


@settings(max_examples=40, deadline=None)
@given(value=json_values)
def test_short_values_are_not_truncated(value: Any) -> None:
    assert trim(value) == value


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("x" * 5000, "1000 characters more"),
        (list(range(300)), "200 more"),
        ({str(n): n for n in range(300)}, "200 more"),
        (json.loads("[" * 200 + "]" * 200), "nested more deeply"),
    ],
    ids=["text", "list", "object", "deep"],
)
def test_long_values_are_truncated_with_a_mark(value: Any, words: str) -> None:
    assert words in json.dumps(trim(value), ensure_ascii=False)


def test_repr_of_the_trace_server_hides_its_address(log: SqliteLog) -> None:
    assert repr(TraceServer(log)) == "<TraceServer>"


MALFORMED: list[bytes] = [
    b"GET /TOKEN/ HTTP/1.1\r\nno colon\r\n\r\n",
    b"GET /TOKEN/ HTTP/1.1\r\nhost: a\r\nhost: b\r\nx\x00: /TOKEN/\r\n\r\n",
    b"GE(T /TOKEN/ HTTP/1.1\r\n\r\n",
    b"GET /TOKEN/ HTTP/9.9.9\r\n\r\n",
    b"GET /TOKEN/" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n",
    b"POST /TOKEN/ HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\nzz/TOKEN/\r\n",
]


def test_token_of_rejected_requests_is_kept(url: str, caplog: pytest.LogCaptureFixture) -> None:
    port, token = url.split(":")[2].split("/")[:2]
    refused = 0
    with caplog.at_level(logging.DEBUG):
        for request in MALFORMED:
            with socket.create_connection(("127.0.0.1", int(port)), 5) as client:
                client.sendall(request.replace(b"TOKEN", token.encode()))
                refused += client.recv(65536).startswith((b"HTTP/1.0 400", b"HTTP/1.1 400"))
    assert refused >= 4
    assert token not in caplog.text
    assert not [record for record in caplog.records if token in str(record.__dict__)]


def test_token_is_not_logged_at_any_level(
    log: SqliteLog, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the reader is broken")

    monkeypatch.setattr(Reader, "count", fail)
    with caplog.at_level(1), caplog.at_level(1, "uvicorn"), Served(log) as url:
        assert ask(url)[0] == 200
        assert ask(url + "api/totals?session=x")[0] == 500
    assert "the reader is broken" in caplog.text
    token = url.split("/")[3]
    assert not [each for each in caplog.records if token in f"{each.getMessage()}{each.__dict__}"]


WANTED = [
    (SessionFilter(sort="oldest"), ["fix", "look", "ask_1"]),
    (SessionFilter(sort="cost"), ["fix", "look", "ask_1"]),
    (SessionFilter(sort="turns"), ["fix", "look", "ask_1"]),
    (SessionFilter(kind="ask"), ["ask_1"]),
    (SessionFilter(outcome="open"), ["ask_1", "look"]),
    (SessionFilter(outcome="completed", model="SONNET"), ["fix"]),
    (SessionFilter(model="nothing"), []),
    (SessionFilter(query="rm -rf"), ["fix"]),
]


def test_sessions_are_sorted_and_filtered_as_requested(log: SqliteLog) -> None:
    tell(log, "fix")
    tell(log, "look", LEFT_OPEN)
    tell(log, "ask_1", [logs.SessionStarted(goal="2 + 2?", model="m", provider="p", kind="ask")])
    for wanted, names in WANTED:
        found = Reader(log).list_sessions(wanted)["sessions"]
        assert [row["session"] for row in found] == names, wanted


def test_summary_of_a_session_is_updated_when_it_grows(log: SqliteLog) -> None:
    tell(log, "fix", STORY[:-1])
    reader = Reader(log)
    assert reader.list_sessions()["sessions"][0]["outcome"] is None
    log.append_sync("fix", STORY[-1])
    row = reader.list_sessions()["sessions"][0]
    assert row["outcome"] == "completed"
    assert row["turns"] == 4
    assert row["unpriced"] == 1


ASKED = (
    next(at for at, payload in enumerate(STORY) if isinstance(payload, logs.PermissionRequested))
    + 1
)
ALLOW: dict[str, Any] = {"session": "fix", "intent": "tu_3", "allowed": True}


def send(
    url: str, answer: dict[str, Any] | None = None, token: str | None = None, **headers: str
) -> tuple[int, str]:
    """Answer a question as the page does, with some headers replaced."""
    found = json.loads(ask(url + "api/questions")[1])
    usual = {
        "Origin": url.partition("/")[0] + "//" + url.split("/")[2],
        "Content_Type": "application/json",
        "X_Approval_Token": found.get("token", "") if token is None else token,
    }
    body = json.dumps(ALLOW if answer is None else answer).encode()
    status, reply, _ = ask(url + "api/answer", "POST", body, **{**usual, **headers})
    return status, reply.decode()


@pytest.fixture
def approving(log: SqliteLog) -> Iterator[str]:
    tell(log, "fix", STORY[:ASKED])
    with Served(log, "ann") as url:
        yield url


def test_answer_to_a_permission_request_is_recorded_once(log: SqliteLog, approving: str) -> None:
    [question] = json.loads(ask(approving + "api/questions")[1])["questions"]
    assert question["session"] == "fix"
    assert question["intent_id"] == "tu_3"
    assert question["input"] == EDIT
    assert send(approving) == (200, '{"intent":"tu_3","allowed":true,"by":"ann","seq":1}')
    with SqliteLog(log.path.with_name("log.db.answers"), readonly=True) as answers:
        [record] = answers.read("fix.answers")
    assert record.data == {"intent_id": "tu_3", "allowed": True, "by": "ann"}
    log.append_sync(
        "fix", logs.PermissionGranted(intent_id="tu_3", tool_name="edit_file", by="ann")
    )
    assert send(approving)[0] == 409


FORGED: list[tuple[int, dict[str, str]]] = [
    (403, {"token": ""}),
    (403, {"token": "x" * 32}),
    (403, {"Origin": "http://evil.example"}),
    (403, {"Origin": "null"}),
    (403, {"Origin": ""}),
    (403, {"Sec_Fetch_Site": "cross-site"}),
    (403, {"Host": "evil.example"}),
    (415, {"Content_Type": "text/plain"}),
    # the length alone decides: a client that is still sending might lose the reply
    (413, {"Content_Length": "1000001"}),
]


def test_an_answer_sent_by_another_web_page_is_rejected(log: SqliteLog, approving: str) -> None:
    for status, headers in FORGED:
        assert send(approving, **headers)[0] == status, headers
    assert not log.path.with_name("log.db.answers").exists()


WRONG: list[dict[str, Any]] = [
    {}, {**ALLOW, "allowed": "yes"}, {**ALLOW, "by": "another person"},
    {**ALLOW, "allowed": False, "input": {}}, {**ALLOW, "prefix": "git"},
    {**ALLOW, "scope": "always"}, {**ALLOW, "input": ["x"]},
]  # fmt: skip


def test_invalid_answer_to_a_permission_is_rejected(log: SqliteLog, approving: str) -> None:
    for answer in WRONG:
        assert send(approving, answer)[0] == 400, answer
    assert not log.path.with_name("log.db.answers").exists()


def test_permission_requests_cannot_be_answered_unless_enabled(log: SqliteLog, url: str) -> None:
    tell(log, "fix", STORY[:ASKED])
    assert json.loads(ask(url + "api/questions")[1]) == {"approve": False, "questions": []}
    assert send(url)[0] in (404, 405)


def test_trace_command_serves_until_interrupted(log: SqliteLog) -> None:
    log.append_sync("a b", logs.MessageRecorded(message=User("Hi")))
    words = ["view", "a b", "--no-browser", "--log", str(log.path)]
    with Terminal("log", *words, "--json") as terminal:
        url = json.loads(terminal.see("}"))["url"]
        assert url.endswith("/#a%20b")
        status, body, _ = ask(url.partition("#")[0] + "api/steps?session=a%20b")
        assert status == 200
        assert json.loads(body)["steps"][0]["title"] == "user: Hi"
        # the reader does not block the writer
        log.append_sync("a b", logs.MessageRecorded(message=User("more")))
        port = url.split(":")[2].split("/")[0]
        taken = CliRunner().invoke(command, [*words, "--port", port])
        assert "--port" in taken.stderr
        assert taken.exit_code == 2
        terminal.type("\x03")
        assert terminal.wait() == 130
    assert "Traceback" not in terminal.raw


@pytest.mark.parametrize("module", ["starlette.routing", "uvicorn.config"])
def test_missing_extra_of_the_trace_viewer_is_named(
    log: SqliteLog, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    result = CliRunner().invoke(command, ["view", "--no-browser", "--log", str(log.path)])
    assert "pip install 'dragoman[cli]'" in result.output
    assert result.exit_code == 2


def test_trace_command_exports_a_session_as_one_page(log: SqliteLog, tmp_path: Path) -> None:
    tell(log)
    run = CliRunner().invoke
    page = tmp_path / "run.html"
    done = run(command, ["export", "fix", "--log", str(log.path), "-o", str(page)])
    assert page.read_text("utf-8") == export_html(log, "fix")
    assert done.exit_code == 0
    assert run(command, ["export", "fix", "--html", "--log", str(log.path)]).stdout == export_html(
        log, "fix"
    )
    refused = run(command, ["export", "--html", "--log", str(log.path)])
    assert "needs a SESSION" in refused.stderr
    assert refused.exit_code == 2
    assert run(command, ["view", "--by", "ann", "--log", str(log.path)]).exit_code == 2
