"""Round trips between the server side and the client side of each wire."""

import contextlib
import json
import os
from typing import Any
from urllib.parse import unquote, urlsplit

import hypothesis
import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import dragoman as d
from dragoman import errors
from dragoman.events import Assembler
from dragoman.validate import Expectation, check_request
from dragoman.wire import SERVER_CODECS, Encoded
from dragoman.wire.rules import NOTHING, UNKNOWN, FieldRule
from tests import strategies as some

from .cases import Case, DecodedReply, decode, find_cases
from .pairs import WIRES, canonical, client, hear, hides, may_be_cut, said, serve

EXHAUSTIVE = os.environ.get("DRAGOMAN_EXHAUSTIVE") == "1"

# Requests that the client codec changes, so that they cannot round-trip: tools sent as text, a
# schema sent as a tool, a token limit that the codec adds, a reasoning effort sent as a budget or
# as a switch, automatic caching, a switch for parallel calls, a model that only the URL names, the
# private state of a router, which the gateway neither sends nor accepts, fields that a server
# demands of every request or turn, system messages that move behind the user's, and on every
# wire names of tools that are replaced.
REWRITTEN = {
    "gemini": (
        "tools-of-the-server quirk-server-invocations quirk-effort-budgets quirk-reasoning-style"
    ),
    "openai": (
        "coerced- quirk-reasoning-details quirk-reasoning-style quirk-cache reasoning-switch "
        "reasoning-off-by quirk-one-call quirk-body quirk-unary-reasoning quirk-call-placeholder "
        "quirk-thinking-in-the-content quirk-reasoning-required"
    ),
    "anthropic": (
        "structured-tool structured-free-keys limit-from-capabilities quirk-reasoning-style "
        "cache-auto quirk-one-call quirk-raw-predict quirk-binds quirk-max-tokens "
        "thinking-display quirk-late-system-in-place"
    ),
    "responses": "quirk-reasoning-style quirk-cache quirk-one-call",
    "ollama": (
        "quirk-reasoning-style quirk-context-and-keep-alive reasoning-off quirk-forced-tool-turns"
    ),
    "bedrock": (
        "cache-for-an-hour quirk-cache quirk-reasoning-style quirk-binds reasoning-budget "
        "thinking-display quirk-late-system-in-place"
    ),
    "cohere": "quirk-reasoning-style strict-tools",
}
# The wires that can represent any request and any reply of the random tests.
COMPLETE = ("openai", "anthropic", "gemini", "responses")


def path_of(encoded: Encoded) -> str:
    """Return the URL path and query of a request, as a server receives it."""
    return unquote(urlsplit(encoded.http.url).path)


def is_rewritten(wire: str, case: Case) -> bool:
    words = ["quirk-tool-names", "quirk-server-tool-form", *REWRITTEN.get(wire, "").split()]
    return any(case.name.startswith(word) for word in words)


def drop_defaults(wire: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return a body without the fields that readers ignore or report, whichever wire the model
    has: values that mean the default, and the number of answers.
    """
    table = SERVER_CODECS[wire].table
    made = {
        name: value
        for name, value in body.items()
        if not is_ignored(table.rules.get(name, UNKNOWN), value)
    }
    for path, rules in table.inner.items():
        if path in made:
            made[path] = {
                name: value
                for name, value in made[path].items()
                if not is_ignored(rules.get(name, UNKNOWN), value)
            }
            made = {name: value for name, value in made.items() if name != path or value}
    return made


def is_ignored(rule: FieldRule, value: Any) -> bool:
    return rule.effect != "read" and (value in rule.default or rule.always)


@pytest.mark.parametrize("wire", WIRES)
def test_encoded_requests_are_decoded_unchanged(wire: str) -> None:
    for case in find_cases(wire, "wire.json"):
        if is_rewritten(wire, case):
            continue
        codec = case.codec()
        encoded = codec.encode(case.request)
        asked = SERVER_CODECS[wire].decode(encoded.http.body, path_of(encoded))
        assert asked.request.stream == case.request.stream, case
        assert asked.request.model == case.request.model, case
        again = msgspec.json.decode(codec.encode(asked.with_extras()).http.body)
        first = msgspec.json.decode(encoded.http.body)
        if "custom_call_rewritten" not in [each.code for each in asked.warnings]:
            assert drop_defaults(wire, again) == drop_defaults(wire, first), case
        if again == first and not encoded.notes and encoded.structured_path in (None, "native"):
            read = canonical(asked.with_extras(), WIRES[wire])
            assert read == canonical(case.request, WIRES[wire]), case


# The mark excludes a test from coverage, so the sample does not have it.
ALL = [pytest.mark.exhaustive] if EXHAUSTIVE else []


@pytest.mark.parametrize("wire", [pytest.param(wire, marks=ALL) for wire in WIRES])
def test_encoded_replies_are_decoded_unchanged(wire: str) -> None:
    cases = find_cases(wire, "events.jsonl")
    for case in cases[:: 1 if EXHAUSTIVE else max(1, len(cases) // 60)]:
        if case.name == "no-valid-call":
            continue  # the text of its error is read again as another class
        heard = decode(case.codec(), case.request, [case.reply or b""])
        for stream in (True, False):
            request = replace(case.request, stream=stream, config=d.RuntimeConfig(max_tokens=1024))
            check_reply(wire, request, heard, case)


def check_reply(wire: str, request: d.Request, heard: DecodedReply, case: object) -> None:
    rules = WIRES[wire]
    losses = rules.reply_losses | (rules.stream_losses if request.stream else rules.body_losses)
    pieces = None
    with contextlib.suppress(d.ProviderError):  # an unstreamed body cannot represent this error
        pieces = serve(wire, request, heard.events, heard.error) if heard.events else None
    if pieces is not None:
        lost = {"hidden": hides(heard, losses), "may_be_cut": may_be_cut(heard, losses)}
        again = said(hear(wire, request, pieces), rules, losses, **lost)
        assert again == said(heard, rules, losses, **lost), case
    else:
        assert heard.error is not None, case
        reply = SERVER_CODECS[wire].error(heard.error)
        error = client(wire).error(reply.status, reply.headers, reply.body)
        assert type(error) is rules.errors.get(type(heard.error), type(heard.error)), case


# --- random requests and replies that round-trip -----------------------------------------------

quickly = settings(
    max_examples=1000 if EXHAUSTIVE else 15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
texts = some.words.filter(lambda text: bool(text.strip()))
TOOLS = (
    d.Tool(
        "weather",
        "The weather.",
        parameters={"type": "object", "properties": {"city": {"type": "string"}}},
    ),
    d.Tool("any", "", parameters={"type": "object"}),
)
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
    "additionalProperties": False,
}
user_blocks = st.one_of(
    st.builds(d.Text, texts),
    st.builds(
        d.Image,
        st.builds(d.Url, st.sampled_from(["https://a.test/b.png", "data:image/png;base64,aGk="])),
    ),
    st.just(d.Image(d.Inline("aGk="), "image/gif")),
)


@st.composite
def conversations(draw: st.DrawFn, wire: str) -> list[d.Message]:
    """Generate conversations that the wire can represent completely."""
    said: list[d.Message] = [d.System(text) for text in draw(st.lists(texts, max_size=2))]
    said.append(d.User(draw(texts | st.lists(user_blocks, min_size=1, max_size=3))))
    for turn in range(draw(st.integers(0, 3))):
        blocks: list[object] = []
        if wire == "anthropic" and draw(st.booleans()):
            issuer = d.Issuer("anthropic")
            thought = d.Thinking("hm", d.Continuity(draw(texts), issuer=issuer))
            blocks.append(
                draw(
                    st.sampled_from(
                        [thought, d.RedactedThinking("x", d.Continuity(issuer=issuer))]
                    )
                )
            )
        blocks.append(d.Text(draw(texts)))
        calls = [
            d.ToolCall(f"call_{turn}_{at}", "any", draw(some.json_objects))
            for at in range(draw(st.integers(0, 2)))
        ]
        said.append(d.Assistant([*blocks, *calls]))  # type: ignore[list-item]
        failed = st.booleans() if wire in ("anthropic", "gemini") else st.just(False)
        said += [d.ToolResult(call.id, draw(texts), draw(failed)) for call in calls]
        said += [] if calls else [d.User(draw(texts))]
    return said


@st.composite
def requests(draw: st.DrawFn, wire: str) -> d.Request:
    common: dict[str, Any] = {
        "temperature": draw(some.numbers),
        "top_p": draw(some.numbers),
        "max_tokens": draw(st.integers(1, 99999)),
        "stop_sequences": draw(
            some.maybe(st.lists(some.words, min_size=1, max_size=2, unique=True))
        ),
        "extras": {
            f"{'generationConfig.' * (wire == 'gemini')}x_{name.replace('.', '')}": value
            for name, value in draw(some.json_objects).items()
            if value not in NOTHING
        },
    }
    if wire == "openai":
        own = {name: draw(some.numbers) for name in ("frequency_penalty", "presence_penalty")}
        efforts = st.sampled_from([None, "none", "minimal", "low", "medium", "high", "xhigh"])
        config = d.RuntimeConfig(**common, **own, seed=draw(some.counts), reasoning=draw(efforts))
    elif wire == "gemini":
        config = d.RuntimeConfig(
            **common,
            seed=draw(some.counts),
            reasoning=draw(st.sampled_from([None, "none", "low", 9])),
        )
    elif wire == "responses":
        del common["stop_sequences"]
        config = d.RuntimeConfig(
            **common, reasoning=draw(st.sampled_from([None, "none", "low", "high"]))
        )
    else:
        config = d.RuntimeConfig(**common, reasoning=draw(st.sampled_from([None, "none", 1024])))
    tools = draw(st.sampled_from([(), TOOLS]))
    choice: Any = (
        draw(st.sampled_from([None, "auto", "required", "none", d.ForceTool("any")]))
        if tools
        else None
    )
    schema = draw(st.sampled_from([None, SCHEMA, {**SCHEMA, "title": "River"}]))
    return d.Request(
        draw(conversations(wire)),
        tools=tools,
        config=config,
        response_schema=schema,
        tool_choice=choice,
        model="m",
        request_id="R",
        stream=draw(st.booleans()),
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("wire", COMPLETE)
@given(data=st.data())
@quickly
def test_any_request_round_trips(wire: str, data: st.DataObject) -> None:
    request = data.draw(requests(wire))
    check_request(request)
    encoded = client(wire).encode(request)
    assert [note for note in encoded.notes if note.loss] == []
    asked = SERVER_CODECS[wire].decode(encoded.http.body, path_of(encoded))
    assert asked.warnings == ()
    assert canonical(asked.with_extras(), WIRES[wire]) == canonical(request, WIRES[wire])


ENDINGS = ["stop", "tool_calls", "length", "content_filter", "fail"]
BARE = [("tool_start", (0, "a", "any")), ("block_end", (0,))]
UNOFFERED = [("tool_start", (0, "a", "unknown")), ("block_end", (0,))]
EMPTY = [("tool_start", (0, "a", "any")), ("tool_input", (0, "{}"))]


@pytest.mark.exhaustive
@example(BARE, "length", True, d.Usage())
@example(UNOFFERED, "length", True, d.Usage())
@example([], "fail", True, d.Usage())
@example(UNOFFERED, "length", False, d.Usage())
@example(BARE, "content_filter", True, d.Usage())
@example(EMPTY, "content_filter", False, d.Usage())
@given(
    verbs=some.verbs(), ending=st.sampled_from(ENDINGS), stream=st.booleans(), usage=some.usages
)
@quickly
def test_any_reply_round_trips(
    verbs: list[some.Verb], ending: str, stream: bool, usage: object
) -> None:
    # Only a "null" that arrives in one piece is an empty input, and a body has no pieces.
    first = [each[1] for verb, each in verbs if verb == "tool_input"]
    hypothesis.assume(stream or not {"n", "nu", "nul"} & set(first))
    for wire in COMPLETE:
        hypothesis.note(f"{wire} {verbs} {ending} {stream}")
        check_reply(wire, *assemble(wire, verbs, ending, usage, stream=stream), verbs)


def assemble(
    wire: str, verbs: list[some.Verb], ending: str, usage: object, *, stream: bool
) -> tuple[d.Request, DecodedReply]:
    """Return a request, and the reply that the verbs make, ended as given."""
    request = d.Request(
        [d.User("Hello")],
        tools=TOOLS,
        config=d.RuntimeConfig(max_tokens=9),
        model="m",
        request_id="R",
        stream=stream,
    )
    out = Assembler(
        request_id="R", model="m", issuer=d.Issuer(wire), expected=Expectation(request)
    )
    out.start()
    for verb, arguments in verbs:
        if verb == "whole" and isinstance(arguments[0], d.Opaque):
            arguments = (d.Opaque({"type": "its_own", "data": arguments[0].data}),)
        if verb != "attach":
            getattr(out, verb)(*arguments)
    out.usage(usage)  # type: ignore[arg-type]
    if ending == "fail":
        out.fail(d.StreamInterruptedError("cut"))
    else:
        reason = "tool_calls" if ending == "stop" and out.has_calls else ending
        out.finish(reason if out.has_calls or reason != "tool_calls" else "stop")  # type: ignore[arg-type]
    return request, DecodedReply(out.take(), out.error)


LEAVES = [
    getattr(errors, name)
    for name in errors.__all__
    if isinstance(getattr(errors, name), type)
    and issubclass(getattr(errors, name), d.ProviderError)
]


@pytest.mark.parametrize("wire", WIRES)
def test_errors_keep_their_class_and_retry_delay_over_the_wire(wire: str) -> None:
    # No wire has an error of guards, which reaches clients as that of an invalid request.
    received = {d.BlockedError: d.InvalidRequestError, **WIRES[wire].errors}
    for kind in LEAVES:
        reply = SERVER_CODECS[wire].error(kind("something happened", retry_after=1.5))
        again = client(wire).error(reply.status, reply.headers, reply.body)
        assert type(again) is received.get(kind, kind)
        assert again.retry_after == 1.5, kind
        assert reply.headers["x-should-retry"] == str(kind.transient).lower(), kind


# Errors of the upstream or of the gateway, not of the request. Repeating the call may help.
OF_SERVERS = (
    d.InvalidResponseError, d.StructuredOutputError, d.CallCancelledError, d.MalformedToolCallError,
)  # fmt: skip


@pytest.mark.parametrize("wire", WIRES)
def test_error_within_a_stream_keeps_the_code_and_is_final_if_it_was(wire: str) -> None:
    request, begun = assemble(wire, [("text", ("Hi",))], "fail", d.Usage(), stream=True)
    events = [event for event in begun.events if not isinstance(event, d.MessageComplete)]
    for kind in LEAVES:
        if kind in (d.ProviderError, *OF_SERVERS):
            continue
        code = None if kind.transient else "cyber_policy"
        error = kind("stopped", provider_code=code, provider_message="It is stopped.")
        pieces = serve(wire, request, events, error)
        again = hear(wire, request, pieces, judged=False).error
        assert again is not None
        assert again.transient == kind.transient, kind
        if WIRES[wire].errors.get(kind, kind) is d.InvalidRequestError:
            assert b'"cyber_policy"' in pieces[-1], kind
            reply = SERVER_CODECS[wire].error(error)
            assert b'"cyber_policy"' in reply.body, kind


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (d.InvalidRequestError("no", provider_code="cyber_policy"), "cyber_policy"),
        (d.InvalidRequestError("no", provider_code="string_too_long"), "invalid_prompt"),
        (d.InvalidRequestError("no"), "invalid_prompt"),
        (d.AuthenticationError("no", provider_code="invalid_api_key"), "invalid_prompt"),
        (d.ContextOverflowError("no", provider_code="too_long"), "context_length_exceeded"),
        (d.QuotaExceededError("no"), "insufficient_quota"),
        (d.BillingError("no"), "insufficient_quota"),
        (d.RateLimitError("no", provider_code="slow_down"), "rate_limit_exceeded"),
        (d.OverloadedError("no"), "server_error"),
        (d.InvalidResponseError("no"), "server_error"),
    ],
)
def test_failed_response_has_a_code_by_which_clients_decide_whether_to_repeat(
    error: d.ProviderError, code: str
) -> None:
    """Codex repeats a failed response five times, except for the codes that it knows as final."""
    request, begun = assemble("responses", [], "fail", d.Usage(), stream=True)
    (written,) = serve("responses", request, begun.events[:0], error)
    frames = [json.loads(line[6:]) for line in written.splitlines() if line[:6] == b"data: "]
    assert [frame["type"] for frame in frames][-2:] == ["response.failed", "error"]
    assert frames[-2]["response"]["error"]["code"] == code


@pytest.mark.parametrize("wire", WIRES)
def test_error_contains_no_key_and_no_internal_address(wire: str) -> None:
    error = errors.NetworkError(
        "cannot reach http://10.0.0.7:8080/v1 with Bearer sk-abcdefghijklmnop"
    )
    body = SERVER_CODECS[wire].error(error).body
    assert b"10.0.0.7" not in body
    assert b"abcdefghij" not in body
