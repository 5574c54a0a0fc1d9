"""Opaque provider state is sent back only to the provider that issued it."""

import re
import tempfile
from pathlib import Path

import pytest

import dragoman as d
from dragoman.wire import CODECS
from dragoman.wire.continuity import is_ours, is_welcome, model_line
from tests.rows import read_table

from .cases import CASES


@pytest.mark.parametrize(
    ("model", "line"), read_table("model_line_is_derived_from_the_model_name")
)
def test_model_line_is_derived_from_the_model_name(model: str, line: str) -> None:
    assert model_line(model) == line


def test_case_files_contain_no_local_path_and_no_key() -> None:
    here = {str(Path.home()), str(Path(__file__).parents[2]), tempfile.gettempdir()}
    private = re.compile(
        "|".join([*map(re.escape, sorted(here)), "/home/", "sk-[A-Za-z0-9]{8}"]).encode()
    )
    files = [path for wire in CASES.iterdir() for path in wire.iterdir()]
    assert len(files) > 1000
    assert [path.name for path in files if private.search(path.read_bytes())] == []


HOME = d.Issuer("w", "v", "m-2025-01-01")


@pytest.mark.parametrize(
    ("issuer", "replayable", "ours", "welcome"),
    [
        (d.Issuer("w", "v", "m"), True, True, True),
        (d.Issuer("w", "v", "m"), False, False, False),
        (d.Issuer("w", "v", "m-20250101"), True, True, True),
        (d.Issuer("w"), True, True, True),
        (d.Issuer("w", "v"), True, True, True),
        (d.Issuer("w", None, "m"), True, True, True),
        (d.Issuer("other", "v", "m"), True, False, False),
        (d.Issuer("w", "other", "m"), True, False, False),
        (d.Issuer("w", "v", "other"), True, False, False),
        (None, True, False, True),
        (None, False, False, False),
    ],
)
def test_provider_state_is_sent_to_its_issuer_only(
    issuer: d.Issuer | None, replayable: bool, ours: bool, welcome: bool
) -> None:
    state = d.Continuity("s", None, issuer, replayable=replayable)
    assert (is_ours(state, HOME), is_welcome(state, HOME)) == (ours, welcome)


def test_block_without_provider_state_has_no_issuer() -> None:
    assert not is_ours(None, HOME)
    assert not is_welcome(None, HOME)


@pytest.mark.parametrize("wire", sorted(CODECS))
def test_provider_state_on_user_and_tool_messages_is_dropped_and_reported(wire: str) -> None:
    text = d.Text("hi", d.Continuity("signature", None, d.Issuer(wire)))
    messages = (
        d.User([text, d.Text("there")]),
        d.Assistant([d.ToolCall("c1", "any", {})]),
        d.ToolResult("c1", [text]),
    )
    codec = CODECS[wire].connect("m", "http://127.0.0.1:9", None, d.Capabilities())
    encoded = codec.encode(d.Request(messages, config=d.RuntimeConfig(max_tokens=9), model="m"))
    told = [
        (warning.code, warning.path)
        for warning in encoded.warnings
        if warning.code == "continuity_dropped"
    ]
    paths = ["messages[0].content[0].continuity", "messages[2].content[0].continuity"]
    assert told == [("continuity_dropped", path) for path in paths]
    assert b"signature" not in encoded.http.body
