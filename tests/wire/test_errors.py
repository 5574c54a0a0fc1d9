"""Decoding of error bodies and of retry delays in the forms that servers send."""

import itertools
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import dragoman as d
from dragoman import errors
from dragoman.errors import MAX_BODY, cut
from dragoman.wire import CODECS
from dragoman.wire.errors import ErrorRow, Failure, build_error, read_failure, read_retry_after
from dragoman.wire.json import ordered_json
from tests import cpu
from tests import strategies as some
from tests.rows import read_table

# --- delays from the Retry-After header --------------------------------------------------------

NOON = "Wed, 21 Oct 2015 12:00:00 GMT"
EPOCH = 1_445_428_800.0  # the time of NOON in seconds since the epoch
WAITS: list[tuple[dict[str, str], float | None]] = read_table("retry_after")


@pytest.mark.parametrize(("headers", "seconds"), WAITS)
def test_retry_after_is_read(headers: dict[str, str], seconds: float | None) -> None:
    assert read_retry_after(headers, EPOCH) == pytest.approx(seconds)


def test_retry_after_date_is_ignored_if_the_time_is_unknown() -> None:
    assert read_retry_after({"retry-after": NOON}) is None
    assert read_retry_after({"x-ratelimit-reset": "1445428805000"}) is None
    assert read_retry_after({"retry-after": NOON, "date": NOON}) == 0


def test_retry_after_date_does_not_depend_on_the_local_time_zone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for zone in ("UTC", "Asia/Tokyo", "America/New_York"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        assert read_retry_after({"retry-after": "Wed, 21 Oct 2015 12:00:10"}, EPOCH) == 10
    monkeypatch.undo()
    time.tzset()


words = st.sampled_from(
    ["1", "5", ".", "-", "d", "h", "m", "s", "ms", " ", ",", "Oct", "GMT", "2015", ":", "é", "\0"]
)
phrases = st.text(max_size=20) | st.lists(words, max_size=12).map("".join)
names = st.sampled_from(["retry-after", "retry-after-ms", "Date", "x-ratelimit-reset", "X-Other"])


@given(st.dictionaries(names, phrases), st.none() | st.just(EPOCH))
def test_any_retry_after_header_gives_a_finite_delay_or_none(
    headers: dict[str, str], now: float | None
) -> None:
    wait = read_retry_after(headers, now)
    assert wait is None or 0 <= wait < float("inf")


# --- bodies of error responses -----------------------------------------------------------------

HTML = """<!DOCTYPE html><html><head><title>401 Authorization Required</title>
<style>body { color: red }</style><script type="x">var a = "<b>";</script></head>
<body><center><h1>401 Authorization Required</h1></center><hr>openresty</body></html>"""
BODIES = read_table("error_bodies")


@pytest.mark.parametrize(
    ("body", "fields"), [row[1:] for row in BODIES], ids=[row[0] for row in BODIES]
)
def test_error_details_are_read_from_the_body(body: Any, fields: dict[str, Any]) -> None:
    written = json.dumps(body)
    failure = Failure(**fields, body=written)
    assert read_failure(written) == read_failure(written.encode()) == failure
    if not isinstance(body, str):
        kept = "" if body is None else bytes(ordered_json(body)).decode()
        assert read_failure(body) == replace(failure, body=kept)


TEXTS: list[tuple[bytes | str, str]] = [
    (b"", ""),
    (b" upstream connect error \n", "upstream connect error"),
    (b"\xff not text", "\ufffd not text"),
    (HTML, "401 Authorization Required 401 Authorization Required openresty"),
    (HTML.encode(), "401 Authorization Required 401 Authorization Required openresty"),
    ("<p>a<script>b</script>c<style>d</style>e<script>f</p>", "a c e f"),
    ("x" * 5000, "x" * 2000),
    ("<p>" + "x " * 5000, ("x " * 250)[:500]),
    ("x" * 300 + "<b>", "x" * 300 + "<b>"),
    ("{not json}", "{not json}"),
]


@pytest.mark.parametrize(("body", "message"), TEXTS)
def test_error_text_is_read_from_bodies_that_are_not_json(body: bytes | str, message: str) -> None:
    kept = body if isinstance(body, str) else body.decode("utf-8", "replace")
    assert read_failure(body) == Failure(message, body=cut(kept, MAX_BODY))


def test_long_error_messages_are_truncated() -> None:
    assert len(read_failure({"error": {"message": "x" * 9000}}).message) == 4000
    assert len(read_failure({"error": "x" * 9000}).message) == 4000
    assert len(read_failure(json.dumps("x" * 9000)).message) == 4000
    assert len(read_failure({"error": {"code": "x" * 9000}}).code) == 200
    assert read_failure({"error": {"message": ["x" * 9000]}}).message.startswith("['xxx")


def test_error_values_too_large_to_print_give_no_text() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    assert read_failure({"error": {"message": deep, "code": 10**5000}}) == Failure()
    assert read_failure({"error": 10**5000}) == Failure()


@pytest.mark.parametrize(
    "body", [b"<script" * 6000, b"<script>" * 5000, b"<" * 40000, b"<p>" + b"<style " * 9000]
)
def test_hostile_html_error_page_is_read_in_linear_time(body: bytes) -> None:
    with cpu.spending() as spent:
        assert len(read_failure(body).message) <= 500
    assert spent.units < cpu.QUARTER_SECOND


@given(
    st.binary(max_size=60)
    | st.text(max_size=60)
    | some.json_values.map(lambda value: json.dumps(value).encode())
)
def test_any_bytes_can_be_read_as_an_error_body(body: bytes | str) -> None:
    failure = read_failure(body)
    assert all(isinstance(part, str) for part in (failure.message, failure.code, failure.kind))
    assert failure.words == f"{failure.code} {failure.kind} {failure.message}"


keys = st.sampled_from(
    ["error", "message", "detail", "reason", "code", "type", "status", "metadata", "raw", "x"]
)
shapes = st.recursive(
    some.json_leaves,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(keys, inner),
    max_leaves=9,
)


@given(shapes)
def test_any_json_can_be_read_as_an_error_body(body: Any) -> None:
    failure = read_failure(json.dumps(body))
    assert failure.retry_after is None or failure.retry_after >= 0
    assert len(failure.message) <= 4000


# --- error classes -----------------------------------------------------------------------------

STATUSES: list[tuple[int, type[d.ProviderError], str]] = [
    (300, d.InvalidRequestError, "the server answered with a redirect, which is not followed"),
    (400, d.InvalidRequestError, "the provider refused the request"),
    (401, d.AuthenticationError, "the provider refused the credentials"),
    (402, d.BillingError, "the provider demands payment"),
    (403, d.AuthenticationError, "the provider refused the credentials"),
    (404, d.InvalidRequestError, "the provider refused the request"),
    (408, d.TimedOutError, "the provider gave up waiting"),
    (422, d.InvalidRequestError, "the provider refused the request"),
    (429, d.RateLimitError, "the provider's rate limit is reached"),
    (499, d.InvalidRequestError, "the provider refused the request"),
    (500, d.UnavailableError, "the provider failed"),
    (503, d.UnavailableError, "the provider failed"),
    (529, d.OverloadedError, "the provider is overloaded"),
    (599, d.UnavailableError, "the provider failed"),
]


@pytest.mark.parametrize(("status", "kind", "message"), STATUSES)
def test_http_status_decides_the_error_class(
    status: int, kind: type[d.ProviderError], message: str
) -> None:
    error = build_error(status, {"X-Request-Id": "r"}, Failure("said"), ())
    assert type(error) is kind
    assert error.message == message
    assert error.status == status
    found = (error.provider_message, error.provider_code, error.headers)
    assert found == ("said", None, {"x-request-id": "r"})


ROWS = [
    ErrorRow(frozenset({400}), "context", d.ContextOverflowError),
    ErrorRow(None, "no such model", d.InvalidModelError),
    ErrorRow(None, "no quota", d.QuotaExceededError),
    ErrorRow(frozenset({400, 500}), ".", d.OverloadedError),
]
BY_ROWS: list[tuple[int, Failure, type[d.ProviderError]]] = [
    (400, Failure("the context is too long"), d.ContextOverflowError),
    (400, Failure(code="context_length"), d.ContextOverflowError),
    (400, Failure(kind="context_length"), d.ContextOverflowError),
    (413, Failure("the context is too long"), d.InvalidRequestError),
    (500, Failure("the context is too long"), d.OverloadedError),
    (404, Failure("no such model"), d.InvalidModelError),
    (500, Failure("no such model"), d.InvalidModelError),
    (429, Failure("slow"), d.RateLimitError),
    (429, Failure("no quota"), d.QuotaExceededError),
    # Status 402 always means a billing error, because waiting for the quota does not help.
    (402, Failure("no quota"), d.BillingError),
]


@pytest.mark.parametrize(("status", "failure", "kind"), BY_ROWS)
def test_first_matching_row_of_the_error_table_decides(
    status: int, failure: Failure, kind: type[d.ProviderError]
) -> None:
    assert type(build_error(status, {}, failure, ROWS)) is kind


def test_row_of_the_error_table_can_set_the_message() -> None:
    error = build_error(404, {}, Failure("no such model"), ROWS)
    assert error.message == "the provider does not serve this model"
    assert (
        build_error(400, {}, Failure("context"), ROWS).message
        == "the provider refused the request"
    )


@pytest.mark.parametrize(
    ("message", "is_place"),
    [
        ("Country, region, or territory not supported", True),
        ("User location is not available", True),
        ("Your key is not valid", False),
    ],
)
def test_refused_place_is_not_blamed_on_the_key(message: str, is_place: bool) -> None:
    error = build_error(403, {}, Failure(message), ())
    assert type(error) is d.AuthenticationError
    assert ("another key does not help" in error.advice) is is_place
    other = build_error(400, {}, Failure(message), ())
    assert other.advice == type(other).advice


def test_error_code_takes_precedence_over_the_error_text() -> None:
    assert build_error(400, {}, Failure("m", "c", "k"), ()).provider_code == "c"
    assert build_error(400, {}, Failure("m", "", "k"), ()).provider_code == "k"
    assert build_error(400, {}, Failure(), ()).provider_message is None


def test_retry_after_header_takes_precedence_over_the_body() -> None:
    failure = Failure("m", retry_after=9.0)
    assert build_error(429, {"retry-after": "0"}, failure, ()).retry_after == 0
    assert build_error(429, {}, failure, ()).retry_after == 9
    assert build_error(429, {"retry-after": NOON}, Failure(), (), EPOCH - 5).retry_after == 5
    assert build_error(429, {}, Failure(), ()).retry_after is None


CLASSES = {getattr(errors, name) for name in errors.__all__ if name.endswith("Error")}


@given(
    st.integers(300, 599),
    st.binary(max_size=40)
    | some.json_values.map(lambda v: json.dumps(v).encode())
    | some.json_values.map(lambda v: json.dumps({"error": v}).encode()),
)
def test_any_status_and_body_gives_one_error_class(status: int, body: bytes) -> None:
    for wire, data in itertools.product(CODECS, (body, b"data: " + body)):
        codec = CODECS[wire].connect("m", "http://127.0.0.1:9", None, d.Capabilities())
        error = codec.error(status, {"Set-Cookie": "a secret", "x-request-id": "r"}, data)
        assert type(error) in CLASSES
        assert error.status == status
        assert error.transient == type(error).transient
        assert error.headers == {"x-request-id": "r"}
        assert str(error)
