"""The error classes, their codes, and the secrets that error texts never contain."""

import json
import pickle
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dragoman as d
from dragoman import errors
from dragoman.errors import cut, keep_headers, quote, scrub, without_frames

# Each line: the class, its parent, its category, its error class, its kind, and whether it is
# transient.
TABLE = """
    AuthenticationError     ProviderError        provider_authentication            auth             auth
    BillingError            AuthenticationError  provider_authentication            auth             quota
    InvalidModelError       ProviderError        provider_invalid_model             invalid_request  bad_request
    ModelNotLoadedError     ProviderError        provider_model_not_loaded          server_error     overloaded transient
    RateLimitError          ProviderError        provider_rate_limit                rate_limit       rate_limit transient
    QuotaExceededError      RateLimitError       provider_rate_limit                rate_limit       quota
    UnavailableError        ProviderError        provider_unavailable               server_error     unknown transient
    OverloadedError         UnavailableError     provider_unavailable               rate_limit       overloaded transient
    NetworkError            UnavailableError     provider_unavailable               network          unknown transient
    TimedOutError           UnavailableError     provider_unavailable               network          timeout transient
    StreamInterruptedError  UnavailableError     provider_unavailable               network          stream_interrupted transient
    InvalidRequestError     ProviderError        provider_invalid_request           invalid_request  bad_request
    BlockedError            InvalidRequestError  provider_invalid_request           invalid_request  bad_request
    ContextOverflowError    InvalidRequestError  provider_invalid_request           context_overflow context_length
    UnsupportedFeatureError InvalidRequestError  provider_invalid_request           invalid_request  unsupported_feature
    UnsupportedContentError ProviderError        provider_unsupported_content_block invalid_request  unsupported_feature
    InvalidResponseError    ProviderError        provider_invalid_response          other            unknown
    MalformedToolCallError  InvalidResponseError provider_invalid_response          other            malformed_tool_call
    StructuredOutputError   ProviderError        structured_output_invalid          other            unknown
    CallCancelledError      ProviderError        cancelled                          cancelled        unknown
"""
TREE = [
    (getattr(errors, kind), getattr(errors, parent), *codes, bool(transient))
    for kind, parent, *codes, transient in [
        [*line.split()[:5], line.split()[5:]] for line in TABLE.strip().splitlines()
    ]
]
CLASSES = [d.ProviderError, *[row[0] for row in TREE]]
KEYS = [
    "sk-abcdefghijklmnop", "sk-proj-AbC_def-0123456789", "gsk_abcdefghijklmnop",
    "xai-abcdefghijklmnop", "hf_abcdefghijklmnop", "AIzaSyA0123456789abcdefghij",
    "eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.sig-nature_1",
]  # fmt: skip


@pytest.mark.parametrize(("kind", "parent", "category", "error_class", "word", "transient"), TREE)
def test_error_classes_match_the_table_of_categories(
    kind: type[d.ProviderError],
    parent: type,
    category: str,
    error_class: str,
    word: str,
    transient: bool,
) -> None:
    assert kind.__bases__ == (parent,)
    expected = (category, error_class, word, transient)
    assert (kind.category, kind.error_class, kind.kind, kind.transient) == expected


def test_table_of_error_classes_is_complete() -> None:
    defined = {
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, d.ProviderError)
    }
    assert defined == set(CLASSES)


def drawn_tree() -> list[tuple[str, str]]:
    """Return each error class in the docstring of ``dragoman.errors``, with its parent."""
    assert errors.__doc__ is not None
    pairs: list[tuple[str, str]] = []
    above: list[str] = []
    for line in errors.__doc__.splitlines():
        match = re.match(r"    ((?:[│├└─ ]{4})*)(\w+Error)\b", line)
        if match:
            depth = len(match[1]) // 4
            above[depth:] = [match[2]]
            pairs.append((match[2], above[depth - 1] if depth else "Exception"))
    return pairs


def test_documented_class_tree_matches_the_inheritance() -> None:
    assert drawn_tree() == [(kind.__name__, kind.__bases__[0].__name__) for kind in CLASSES]


FACTS = {
    "status": 418, "provider": "teapot", "model": "earl-grey", "request_id": "req_1",
    "provider_code": "short_and_stout", "provider_message": "I cannot brew coffee",
    "retry_after": 2.5,
}  # fmt: skip


@pytest.mark.parametrize("kind", CLASSES)
def test_errors_keep_their_attributes_also_when_pickled(kind: type[d.ProviderError]) -> None:
    response = d.Response(d.Assistant("half"), "error")
    error = kind("no coffee", **FACTS, headers={"X-Request-Id": "r1"}, response=response)
    assert {name: getattr(error, name) for name in FACTS} == FACTS
    assert error.message == "no coffee"
    assert error.args == ("no coffee",)
    assert error.response == response
    assert error.headers == {"x-request-id": "r1"}
    error.hide([], ["I cannot brew coffee"])
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert vars(copy) == vars(error)
    assert str(copy) == str(error)
    assert copy.args == error.args
    bare = kind()
    assert {getattr(bare, name) for name in FACTS} == {None}
    assert bare.headers == {}
    assert bare.response is None
    assert bare.message == ""


@pytest.mark.parametrize("which", ["connect", "first_event", "idle", "total"])
def test_timeout_error_names_the_exceeded_timeout(which: errors.Deadline) -> None:
    error = pickle.loads(pickle.dumps(d.TimedOutError("late", which=which, status=408)))
    assert error.which == which
    assert error.status == 408


def test_timeout_error_names_the_total_timeout_by_default() -> None:
    assert d.TimedOutError().which == "total"


def test_structured_output_error_keeps_its_attributes_when_pickled() -> None:
    fields = {
        "response_schema": {"type": "object"}, "output_content": "not json",
        "error_message": "it is not JSON", "finish_reason": "length", "usage": d.Usage(1, 2),
    }  # fmt: skip
    error = pickle.loads(pickle.dumps(d.StructuredOutputError("no", provider="p", **fields)))
    assert {name: getattr(error, name) for name in fields} == fields
    assert error.provider == "p"
    bare = d.StructuredOutputError()
    assert [getattr(bare, name) for name in fields] == [None, "", "", None, None]


WORDS = [
    (d.ProviderError(), "provider_unavailable"),
    (d.ProviderError("no"), "no"),
    (d.ProviderError("no", provider="p"), "p: no"),
    (d.ProviderError("no", provider="p", model="m"), "p/m: no"),
    (d.ProviderError("no", model="m", status=500), "m: no (HTTP 500)"),
    (d.ProviderError("no", provider_message="because"), "no. The provider says: because"),
    (d.ProviderError("no", provider_message="no"), "no"),
    (d.ProviderError("no", provider_message="two\n  lines"), "no. The provider says: two lines"),
    (d.RateLimitError("slow"), "slow. Wait and try again, or send less."),
    (d.RateLimitError("slow."), "slow. Wait and try again, or send less."),
    (d.RateLimitError("slow?"), "slow? Wait and try again, or send less."),
    (d.CallCancelledError("stop", status=499),
     "stop (HTTP 499). Call again if the answer is still wanted."),
    (d.InvalidRequestError("messages is empty"), "messages is empty"),
    (d.UnsupportedFeatureError("no"), "no. Leave the setting out, or use a model that has it."),
    (d.UnsupportedContentError("no"),
     "no. Send it in another form, or use a model that reads it."),
    (d.InvalidResponseError("no"), "no. Check that the server at the base URL speaks this wire."),
    (d.StructuredOutputError("no"),
     "no. The text is in error.output_content; ask again, or with a simpler schema."),
]  # fmt: skip


@pytest.mark.parametrize(("error", "text"), WORDS)
def test_error_text_is_formatted(error: d.ProviderError, text: str) -> None:
    assert str(error) == text
    assert repr(error) == f"{type(error).__name__}({text!r})"


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_class_adds_its_advice(kind: type[d.ProviderError]) -> None:
    assert str(kind("It went wrong")) == f"It went wrong. {kind.advice}".removesuffix(". ")


def test_advice_depends_on_the_error_class() -> None:
    # the message of an invalid request names what is wrong with it
    silent = [d.ProviderError, d.InvalidRequestError]
    assert [kind for kind in CLASSES if not kind.advice] == silent
    # One error class shares the advice of its parent class, so there is one text fewer than there
    # are classes.
    assert len({kind.advice for kind in CLASSES}) == len(CLASSES) - 2
    assert all(kind.advice.endswith(".") for kind in CLASSES if kind not in silent)


@pytest.mark.parametrize(("length", "ending"), [(300, "x"), (301, "…")])
def test_long_provider_messages_are_truncated(length: int, ending: str) -> None:
    quote = str(d.ProviderError("no", provider_message="x" * length)).removeprefix(
        "no. The provider says: "
    )
    assert len(quote) == 300
    assert quote.endswith(ending)


SHAPES = [
    *KEYS, "Bearer abcdefgh", "Bearer   abcdefgh12345", "basic dXNlcjpwYXNz",
    "dg-Zm9vYmFyYmF6cXV4MTIzNDU2Nzg5MA",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0",
]  # fmt: skip


@pytest.mark.parametrize("key", SHAPES)
def test_text_that_looks_like_a_key_is_hidden_in_error_texts(key: str) -> None:
    assert scrub(f"key <{key}>!") == "key <[hidden]>!"
    error = d.AuthenticationError(
        f"no {key}", provider_message=f"Incorrect API key provided: {key}."
    )
    assert key not in str(error) + repr(error)
    assert str(error).count("[hidden]") == 2


@pytest.mark.parametrize(
    "text", ["sk-short", "risk-abcdefghijklmnop", "bearer of news", "task_abcdefghijklmnop", ""]
)
def test_ordinary_text_is_not_hidden(text: str) -> None:
    assert scrub(text, ["", "absent"]) == text


@given(st.lists(st.text("ab", min_size=1, max_size=5)), st.text("abc", max_size=20))
def test_listed_secrets_are_hidden(secrets: list[str], text: str) -> None:
    assert not any(secret in scrub(text, secrets) for secret in secrets)


def test_secret_that_is_a_prefix_of_another_is_hidden() -> None:
    assert (
        scrub("token abcdef", ["abc", "abcdef"])
        == scrub("token abcdef", ["abcdef", "abc"])
        == "token [hidden]"
    )


def test_hide_removes_secrets_from_every_text_of_an_error() -> None:
    secret = "topsecret"
    error = d.ProviderError(
        f"1 {secret}", provider_code=f"2 {secret}", provider_message=f"3 {secret}",
        headers={"x-request-id": f"4 {secret}"}, param=f"5 {secret}", body=f"6 {secret}",
    )  # fmt: skip
    error.hide([secret, ""])
    expected = ("1 [hidden]", ("1 [hidden]",), "2 [hidden]")
    assert (error.message, error.args, error.provider_code) == expected
    expected = ("3 [hidden]", {"x-request-id": "4 [hidden]"})
    assert (error.provider_message, error.headers) == expected
    assert error.param == "5 [hidden]"
    assert error.body == "6 [hidden]"
    assert secret not in repr(vars(error)) + str(error) + repr(error)


def test_hiding_secrets_works_on_an_error_without_text() -> None:
    error = d.ProviderError("no")
    error.hide(["x"], ["a prompt"])
    assert error.provider_code is None
    assert error.provider_message is None
    assert error.quotable is True


BODIES: list[tuple[str | bytes | None, Any, Any]] = [
    (None, None, None),
    (" ", None, None),
    (b"<html>\xff</html>", "<html>\ufffd</html>", None),
    ("[" * 10_000, "[" * 10_000, None),  # this JSON is nested too deeply to be parsed
    ("[1]", [1], None),
    ('{"error": "no"}', {"error": "no"}, None),
    ('{"error": {"details": [], "metadata": {"a": 1}}}',
     {"error": {"details": [], "metadata": {"a": 1}}}, {"a": 1}),
    ('{"innererror": {"a": 1}, "details": [2]}', {"innererror": {"a": 1}, "details": [2]},
     {"a": 1}),
    ('{"error": {"message": "no"}}', {"error": {"message": "no"}}, None),
]  # fmt: skip


@pytest.mark.parametrize(("body", "parsed", "inner"), BODIES)
def test_error_body_of_json_is_parsed(body: str | bytes | None, parsed: Any, inner: Any) -> None:
    error = d.ProviderError("no", body=body)
    assert error.body == parsed
    assert error.inner_error == inner


LONG = "The quick brown fox jumps over the lazy dog by the river."
ECHOES = [
    ("abcd", "you said abcd", True),
    ("abc", "you said abc", False),  # a prompt of three letters may occur by chance
    ("  abcd\n", "you said abcd", True),
    ("", "anything", False),
    ("x" * 20, "x" * 20, True),
    ("x" * 20, "x" * 19, False),
    (LONG, LONG, True),
    (LONG, LONG[:20], True),
    (LONG[:29], LONG[10:29], False),
    # Any 30 consecutive characters of the prompt are recognised.
    (LONG, f"refused: {LONG[7:37]}...", True),
    (LONG, f"refused: {LONG[-20:]}", False),
    (LONG, "the quick brown fox", False),
]


@pytest.mark.parametrize(("prompt", "message", "echoed"), ECHOES)
def test_echoed_prompts_are_not_quoted(prompt: str, message: str, echoed: bool) -> None:
    error = d.InvalidRequestError("refused", provider_message=message)
    error.hide([], ["another prompt", prompt])
    assert error.quotable is not echoed
    assert error.provider_message == message  # the attribute keeps the complete message
    assert (message in str(error)) is not echoed
    assert (message in repr(error)) is not echoed


@given(st.text("abcdefghij ", min_size=29, max_size=120), st.data())
def test_any_long_part_of_an_echoed_prompt_is_detected(prompt: str, data: st.DataObject) -> None:
    prompt = prompt.strip().ljust(29, "z")
    start = data.draw(st.integers(0, len(prompt) - 29))
    error = d.InvalidRequestError("refused", provider_message=f">>{prompt[start : start + 29]}<<")
    error.hide([], [prompt])
    assert not error.quotable


HEADERS = {
    "Authorization": "Bearer abcdefghijkl", "Set-Cookie": "session=1", "X-Api-Key": "abc",
    "Openai-Organization": "me", "CF-Ray": "ray", "Content-Type": "text/html", "Date": "today",
    "OpenAI-Processing-Ms": "5", "Request-Id": "a", "Retry-After": "1", "Retry-After-Ms": "1000",
    "X-Request-Id": "b", "X-Should-Retry": "true", "X-RateLimit-Remaining": "9",
    "Anthropic-RateLimit-Tokens-Reset": "later", "X-RateLimit-Note": "sk-abcdefghijklmnop",
}  # fmt: skip


def test_only_safe_headers_are_kept_on_an_error() -> None:
    kept = {name.lower(): value for name, value in list(HEADERS.items())[4:]}
    assert keep_headers(HEADERS) == {**kept, "x-ratelimit-note": "[hidden]"}
    assert d.ProviderError(headers=HEADERS).headers == keep_headers(HEADERS)
    assert "ray" not in str(d.ProviderError("no", headers=HEADERS))


@given(
    st.dictionaries(
        st.sampled_from(list(HEADERS)) | st.text(max_size=20), st.text("abc", max_size=5)
    )
)
def test_headers_that_are_not_listed_are_dropped(headers: dict[str, str]) -> None:
    allowed = {name.lower() for name in list(HEADERS)[4:]}
    families = ("x-ratelimit-", "anthropic-ratelimit-")
    wanted = {
        name for name in map(str.lower, headers) if name in allowed or name.startswith(families)
    }
    assert keep_headers(headers).keys() == wanted


LONG = "-eyJaaaaaaaaaa" * 2_000


def test_scrubbing_secrets_truncates_long_text() -> None:
    assert len(scrub("x" * 1_000_000)) == 64 * 1024
    assert len(scrub("x" * 1_000_000, limit=None)) == 1_000_000


@pytest.mark.parametrize("kept", [6, 9, 20])
def test_secret_that_is_cut_off_by_truncation_is_hidden(kept: int) -> None:
    secret = "plain words without a shape of a key"
    text = cut("x" * 50 + secret, 50 + kept + 1)
    assert scrub(text, [secret]) == "x" * 50 + "[hidden]…"
    assert scrub(text[:-1], [secret]) == text[:-1], "a text that was not cut may end like a secret"


def test_truncated_text_without_a_secret_is_unchanged() -> None:
    assert scrub("hello world…", ["secret-value"]) == "hello world…"


HUGE: list[Any] = [
    LONG, [LONG] * 50, {LONG: LONG}, 10**5000, -(10**5000), 1e308, None, b"x" * 5000,
    json.loads("[" * 900 + "]" * 900),
]  # fmt: skip


@pytest.mark.parametrize("value", HUGE, ids=lambda value: type(value).__name__)
def test_quoted_value_is_short(value: Any) -> None:
    assert 0 < len(quote(value)) <= 103


def test_short_value_is_quoted_completely() -> None:
    assert quote("a'b") == repr("a'b")
    assert quote(None) == "None"
    assert quote([1, "x"]) == "[1, 'x']"


def test_cause_of_an_error_is_kept_without_its_data() -> None:
    cause = UnicodeDecodeError("utf-8", b"a secret \xff", 9, 10, "invalid start byte")
    cause.__context__ = ValueError("a secret")
    assert without_frames(cause) is cause
    assert cause.object == b""
    assert cause.__context__ is None
    assert cause.__traceback__ is None
    assert "invalid start byte" in str(cause)


def test_explicit_advice_replaces_the_advice_of_the_class() -> None:
    error = d.RateLimitError("Too many requests", advice="Ask for a higher limit.")
    assert str(error) == "Too many requests. Ask for a higher limit."
    assert d.RateLimitError.advice != error.advice
    assert str(d.RateLimitError("Wait a minute.", advice="")) == "Wait a minute."


def test_missing_package_is_named_with_what_to_install() -> None:
    expected = pytest.raises(ImportError, match="install the extra")
    with expected as caught, errors.advise_import("install the extra"):
        raise ModuleNotFoundError("no module")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
