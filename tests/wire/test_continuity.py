"""Opaque provider state is sent back only to the provider that issued it."""

import re
import tempfile
from pathlib import Path
from typing import Any

import pytest

import dragoman as d
from dragoman.wire import CODECS
from dragoman.wire.continuity import (
    find_compaction,
    is_ours,
    is_welcome,
    model_line,
    refuses_lost_state,
)
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
    assert is_ours(state, HOME) == ours
    assert is_welcome(state, HOME) == welcome


def test_block_without_provider_state_has_no_issuer() -> None:
    assert not is_ours(None, HOME)
    assert not is_welcome(None, HOME)


SUMMED = {"type": "compaction", "content": "So far."}
SEALED = {"type": "compaction", "encrypted_content": "E"}


@pytest.mark.parametrize(
    ("data", "issuer", "at"),
    [
        (SUMMED, d.Issuer("anthropic", None, "m"), 1),
        (SEALED, d.Issuer("anthropic"), 1),
        ({**SUMMED, "content": None}, d.Issuer("anthropic"), None),  # a compaction that failed
        ({"type": "note"}, d.Issuer("anthropic"), None),
        ("text", d.Issuer("anthropic"), None),
        (SUMMED, d.Issuer("responses"), None),
        (SUMMED, d.Issuer("anthropic", None, "other"), None),
    ],
)
def test_last_compaction_of_an_issuer_is_found(
    data: Any, issuer: d.Issuer, at: int | None
) -> None:
    home = d.Issuer("anthropic", None, "m")
    state = d.Continuity(issuer=issuer)
    messages = [d.User("a"), d.Assistant([d.Opaque(data, state)]), d.User("b")]
    assert find_compaction(messages, home) == at
    codec = CODECS["anthropic"].connect("m", "http://x", None, d.Capabilities())
    request = d.Request(messages[1:], config=d.RuntimeConfig(max_tokens=9), model="m")
    headers = codec.encode(request).http.headers
    assert ("anthropic-beta" in headers) == (at is not None)


@pytest.mark.parametrize(
    ("wire", "tokens", "written"),
    [
        ("anthropic", 60_000,
         {"edits": [{"type": "compact_20260112",
                     "trigger": {"type": "input_tokens", "value": 60_000}}]}),
        ("anthropic", None, {"edits": [{"type": "compact_20260112"}]}),
        ("anthropic", 9_000, None),
        ("responses", 9_000, [{"type": "compaction", "compact_threshold": 9_000}]),
        ("responses", None, [{"type": "compaction"}]),
        ("openai", 9_000, None),
    ],
)  # fmt: skip
def test_compaction_is_requested_in_the_form_of_each_wire(
    wire: str, tokens: int | None, written: Any
) -> None:
    codec: Any = CODECS[wire].connect("m", "http://x", None, d.Capabilities())
    extras = codec.compaction(tokens)
    assert extras == (None if written is None else {"context_management": written})
    if extras is None:
        return
    config = d.RuntimeConfig(max_tokens=9, extras=extras)
    request = d.Request([d.User("a")], config=config, model="m")
    error = codec.error(400, {}, b'{"error": {"message": "context_management: not permitted"}}')
    learned = codec.learn(error, request)
    assert b"context_management" in codec.encode(request).http.body
    assert b"context_management" not in learned.encode(request).http.body
    assert learned.compaction(tokens) is None
    assert codec.learn(error, d.Request([d.User("a")], model="m")) is None


@pytest.mark.parametrize(
    ("status", "message", "expected"),
    [
        (400, "The reasoning_content in the thinking mode must be passed back to the API.", True),
        (400, "temperature is not supported", False),
        (500, "reasoning_content must be passed back", False),
        (400, None, False),
    ],
)
def test_refusal_of_calls_without_their_reasoning_is_recognised(
    status: int, message: str | None, expected: bool
) -> None:
    error = d.InvalidRequestError("no", status=status, provider_message=message)
    assert refuses_lost_state(error) is expected


@pytest.mark.parametrize("wire", ["anthropic", "openai", "cohere"])
def test_request_to_compact_is_refused_by_wires_that_cannot(wire: str) -> None:
    trigger = d.Opaque({"type": "compaction_trigger"})
    talk = [d.User("Hi"), d.Assistant((d.Text("Yes."), trigger)), d.User("On.")]
    codec = CODECS[wire]("m", "http://x.test/v1")
    config = d.RuntimeConfig(max_tokens=9)
    with pytest.raises(d.UnsupportedContentError, match="compact"):
        codec.encode(d.Request(talk, config=config, model="m"))
