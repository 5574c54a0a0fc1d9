"""Token estimates: compared with exact counts, general properties, and invalid input."""

# ruff: noqa: SLF001 - the fitted tables, the patterns and the cache of shapes are not public

import base64
import re
import socket
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dragoman as d
from dragoman import tokens
from dragoman.tokens import (
    FAMILIES,
    Calibration,
    Estimate,
    estimate_input_tokens,
    estimate_request,
    estimate_text,
    exact_text,
)
from dragoman.tokens import media as media_tokens
from dragoman.tokens import text as text_tokens
from tests.rows import read_table

# --- comparing estimates with exact counts -----------------------------------------------------

TEXTS = dict(read_table("token_texts"))

# The exact token counts of these texts in the vocabulary of each tokenizer family, without message
# overhead.
COUNTED = (
    "o200k", "cl100k", "claude", "claude-4.7", "llama3", "qw152k", "ds129k", "tekken", "gemini",
    "glm", "km164k",
)  # fmt: skip
COUNTS = dict(read_table("token_counts"))

CASES = [
    (name, family, count)
    for name, row in COUNTS.items()
    for family, count in zip(COUNTED, row, strict=True)
]
VOCABULARIES = {
    "o200k": "o200k_base", "cl100k": "cl100k_base", "llama3": "llama3", "qw152k": "qwen3",
    "ds129k": "deepseek_v3", "tekken": "mistral_v3", "gemini": "gemma3", "glm": "glm4",
    "km164k": "kimi_k2",
}  # fmt: skip


def _off(name: str, family: str, count: int) -> float:
    """Return the relative error of an estimate, divided by its error band."""
    estimate = estimate_text(TEXTS[name], family)
    return abs(estimate.tokens / count - 1) / estimate.error_band


def test_nine_in_ten_token_estimates_are_within_their_error_band_and_none_is_far_outside() -> None:
    off = {case: _off(*case) for case in CASES}
    assert {case: error for case, error in off.items() if error > 2} == {}
    assert sum(error <= 1 for error in off.values()) >= 0.9 * len(off)


def test_token_estimates_are_unbiased() -> None:
    for family, counts in zip(COUNTED, zip(*COUNTS.values(), strict=True), strict=True):
        estimated = sum(estimate_text(TEXTS[name], family).tokens for name in COUNTS)
        assert estimated == pytest.approx(sum(counts), rel=0.06), family


def test_estimate_of_the_default_family_is_between_those_of_the_others() -> None:
    for name, row in COUNTS.items():
        assert min(row) * 0.9 <= estimate_text(TEXTS[name]).tokens <= max(row) * 1.1, name


def test_every_tokenizer_family_has_an_error_band_and_message_overhead() -> None:
    assert set(FAMILIES) == {"default", *COUNTED}
    table = text_tokens.read_table()
    assert tuple(table.costs) == FAMILIES
    assert set(table.bands) == set(text_tokens.read_table().frames) == set(FAMILIES)
    assert all(0.02 < band < 0.5 for band in table.bands.values())
    assert {len(text_tokens._costs(family)) for family in tokens.FAMILIES} == {
        len(text_tokens._FEATURES)
    }
    assert set(media_tokens.RULES) < set(FAMILIES)


def test_error_names_an_unknown_tokenizer_family() -> None:
    with pytest.raises(ValueError, match=r"^family: 'abacus' is not one of default, "):
        estimate_text("x", "abacus")
    with pytest.raises(ValueError, match=r"^family: "):
        estimate_request([d.User("x")], family="")


# --- properties of every estimate --------------------------------------------------------------

# By default, characters() generates no surrogates.
_LONE_SURROGATE = st.integers(0xD800, 0xDFFF).map(chr)
_ANY_CHARACTER = st.characters() | st.characters(categories=("Cc", "Cf", "Co")) | _LONE_SURROGATE
_ANY_TEXT = st.text(_ANY_CHARACTER, max_size=300)
_LIKELY_PIECES = [
    "word", "Word", "WORD", "x", " ", "  ", "\n", "\r\n", "\t", ".", "((", "--", "12", "é", "я", "漢",
    "か", "😀",
]  # fmt: skip
_LIKELY_TEXT = st.lists(st.sampled_from(_LIKELY_PIECES), max_size=60).map("".join)


@given(st.one_of(_ANY_TEXT, _LIKELY_TEXT), st.sampled_from(FAMILIES))
def test_any_text_has_a_token_estimate(text: str, family: str) -> None:
    estimate = estimate_text(text, family)
    assert estimate.family == family
    assert estimate.method == "heuristic"
    assert 0 <= estimate.tokens <= 6 * len(text)
    assert estimate.error_band > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_empty_text_has_no_tokens(family: str) -> None:
    assert estimate_text("", family).tokens == 0
    assert estimate_request([], family=family) == Estimate(0, "heuristic", family, 0.0)


@given(
    st.one_of(_ANY_TEXT, _LIKELY_TEXT),
    st.one_of(_ANY_TEXT, _LIKELY_TEXT),
    st.sampled_from(FAMILIES),
)
def test_more_text_has_more_tokens(a: str, b: str, family: str) -> None:
    both, first, second = (estimate_text(text, family).tokens for text in (a + b, a, b))
    assert both >= max(first, second) - 3


@given(_LIKELY_TEXT, st.integers(2, 20), st.sampled_from(FAMILIES))
def test_repeated_lines_count_proportionally(text: str, times: int, family: str) -> None:
    once = text_tokens.count_tokens([text + ".\n\nx"], family)
    repeated = text_tokens.count_tokens([(text + ".\n\nx\n") * times], family)
    assert repeated == pytest.approx(times * once, rel=0.25, abs=2 * times)


LONG = [
    *" aA0\n(-éя漢かไ😀\u200d\ud800\x00\ue000\ufdd0\U0010ffff\u00a0",
    *("aA", "Aa ", " \n", "\t ", "\t\n ", "()", "aé", "я ", "_a", "a1"),
]


@pytest.mark.parametrize("unit", LONG)
def test_very_long_text_can_be_counted(unit: str) -> None:
    text = unit * (100_000 // len(unit))
    assert 1 <= estimate_text(text).tokens <= 6 * len(text)


@given(_ANY_TEXT)
def test_tokenizer_patterns_cover_every_character_once(text: str) -> None:
    shape = text.translate(text_tokens._tables()[0])
    kept = sum(map(len, text_tokens._WORD.findall(shape)))
    for stretch in text_tokens._STRETCH.findall(shape):
        assert "".join(text_tokens._PIECE.findall(stretch)) == stretch
        kept += len(stretch)
    spaces_with_words = sum(word.startswith(" ") for word in text_tokens._WORD.findall(shape))
    assert kept - spaces_with_words == len(shape) == len(text.replace("\r", ""))


def test_token_cache_does_not_keep_the_text() -> None:
    text_tokens._measure_short.cache_clear()
    seen: list[str] = []
    estimate_text("Zażółć 4242 gęślą, пароль 密碼 😀 hunter2!")
    shape = "Zażółć 4242 gęślą, пароль 密碼 😀 hunter2!".translate(text_tokens._tables()[0])
    seen += text_tokens._STRETCH.findall(shape)
    assert text_tokens._measure_short.cache_info().currsize > 0
    assert not re.search(r"\w", "".join(seen).replace("0", ""))


def test_long_pieces_of_text_are_not_cached() -> None:
    text_tokens._measure_short.cache_clear()
    estimate_text("漢" * 33)
    assert text_tokens._measure_short.cache_info().currsize == 0
    estimate_text("漢" * 32)
    assert text_tokens._measure_short.cache_info().currsize == 1


def test_counting_tokens_opens_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a socket was asked for")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    tokens._vocabulary.cache_clear()
    assert estimate_request([d.User("hello")], [d.Tool("f")], "be brief").tokens > 0
    assert exact_text("hello", "o200k_base") == 1
    with pytest.raises(AssertionError, match="a socket was asked for"):
        socket.create_connection(("localhost", 9))


# --- exact counting with the tokenizer library -------------------------------------------------


@pytest.mark.parametrize("family", VOCABULARIES)
def test_exact_token_counts_equal_the_reference_counts(family: str) -> None:
    vocabulary = VOCABULARIES[family]
    for name, row in COUNTS.items():
        estimate = estimate_text(TEXTS[name], family, vocabulary=vocabulary)
        count = row[COUNTED.index(family)]
        assert estimate == Estimate(count, f"exact:{vocabulary}", family, 0.0), name


def test_exact_token_counting_accepts_any_text() -> None:
    assert exact_text("", "o200k_base") == 0
    assert exact_text("\ud800", "o200k_base") == exact_text("\ufffd", "o200k_base")
    assert exact_text("\ud83d\ude00", "o200k_base") == exact_text("😀", "o200k_base")
    assert exact_text("<|endoftext|>", "o200k_base") > 1


def test_error_names_an_unknown_tokenizer_vocabulary() -> None:
    with pytest.raises(ValueError, match=r"^vocabulary: .*abacus"):
        exact_text("x", "abacus")


def test_missing_extra_error_shows_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens._vocabulary.cache_clear()
    monkeypatch.setitem(sys.modules, "splintr", None)
    with pytest.raises(
        ModuleNotFoundError, match=re.escape("pip install 'dragoman[tokens]'")
    ) as caught:
        exact_text("x", "o200k_base")
    assert caught.value.name == "splintr"
    assert estimate_text("x").tokens == 1


def test_exactly_counted_request_has_a_small_error_band() -> None:
    messages: list[d.Message] = [d.System(TEXTS["instructions"]), d.User(TEXTS["english"])]
    estimate = estimate_request(messages, family="o200k", vocabulary="o200k_base")
    assert estimate.tokens == COUNTS["instructions"][0] + COUNTS["english"][0] + 3 + 4 + 4
    assert estimate.method == "exact:o200k_base"
    assert 0 < estimate.error_band < estimate_request(messages, family="o200k").error_band


# --- token estimates of requests ---------------------------------------------------------------

WEATHER = d.Tool(
    "get_weather",
    "Look up the weather of a city, today or on another day.",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "its name"},
            "day": {"type": "string"},
        },
        "required": ["city"],
    },
)


def _plain(family: str = "o200k") -> int:
    return estimate_input_tokens([d.User("hello")], family=family)


@pytest.mark.parametrize("family", FAMILIES)
def test_request_estimate_is_its_text_plus_message_overhead(family: str) -> None:
    text = TEXTS["english"]
    frame = text_tokens.read_table().frames[family]
    one = estimate_input_tokens([d.User(text)], family=family)
    assert one == pytest.approx(
        estimate_text(text, family).tokens + frame.request + frame.message, abs=1
    )
    two = estimate_input_tokens([d.User(text), d.Assistant(text)], family=family)
    assert two == pytest.approx(2 * one - frame.request, abs=1)


def test_input_token_estimate_equals_the_request_estimate() -> None:
    messages: list[d.Message] = [
        d.System("be brief"), d.User("hello"), d.Assistant("hi"), d.User("bye"),
    ]  # fmt: skip
    for family in FAMILIES:
        estimate = estimate_request(messages, [WEATHER], "and polite", family=family)
        assert (
            estimate_input_tokens(messages, [WEATHER], "and polite", family=family)
            == estimate.tokens
        )
    assert estimate_input_tokens(messages, None, None) == estimate_input_tokens(messages)


def test_system_prompt_counts_as_a_system_message() -> None:
    as_message = estimate_request([d.System("be brief"), d.User("hello")])
    assert estimate_request([d.User("hello")], (), "be brief") == as_message
    assert estimate_request([d.User("hello")], (), "") == estimate_request([d.User("hello")])


@pytest.mark.parametrize("family", FAMILIES)
def test_tool_definitions_are_counted(family: str) -> None:
    frame = text_tokens.read_table().frames[family]
    schema = estimate_text(
        tokens._as_json(["get_weather", WEATHER.description, WEATHER.parameters]), family
    ).tokens
    without, one, two = (
        estimate_input_tokens([d.User("hello")], [WEATHER] * n, family=family) for n in range(3)
    )
    assert one - without == pytest.approx(schema * frame.schema + frame.tools + frame.tool, abs=2)
    assert two - one == pytest.approx(schema * frame.schema + frame.tool, abs=2)


def test_non_ascii_tool_arguments_are_counted_as_they_are_sent() -> None:
    text = TEXTS["chinese"]
    call: list[d.Message] = [
        d.User("hello"),
        d.Assistant([d.ToolCall("c1", "find", {"what": text})]),
    ]
    bare: list[d.Message] = [
        d.User("hello"),
        d.Assistant([d.ToolCall("c1", "find", {"what": ""})]),
    ]
    expected = estimate_text(text, "o200k").tokens
    more = estimate_input_tokens(call, family="o200k") - estimate_input_tokens(
        bare, family="o200k"
    )
    assert more == pytest.approx(expected, rel=0.1)


def test_token_estimate_counts_every_kind_of_block() -> None:
    long = " ".join(["tokens are counted here"] * 20)
    question = d.User("hello")
    plain = estimate_input_tokens([question, d.Assistant("hi")])
    for block in (
        d.Text(long),
        d.Thinking(long),
        d.RedactedThinking("QUJD" * 100),
        d.ToolCall("c1", "find", {"what": long}),
        d.ToolCall("c1", "find" * 60, None),
        d.Opaque({"type": "server_tool_result", "text": long}),
    ):
        assert (
            estimate_input_tokens([question, d.Assistant([d.Text("hi"), block])]) > plain + 50
        ), block
    called: list[d.Message] = [question, d.Assistant([d.ToolCall("c1", "f", {})])]
    bare = estimate_input_tokens([*called, d.ToolResult("c1", "")])
    for said in (
        d.Text(long),
        d.Image(d.Url("https://example.org/a.png")),
        d.Document(d.Url("https://example.org/a.pdf")),
    ):
        assert (
            estimate_input_tokens([d.User([d.Text("hello"), said]), d.Assistant("hi")])
            > plain + 50
        ), said
        assert estimate_input_tokens([*called, d.ToolResult("c1", [said])]) > bare + 50, said


def test_thinking_of_earlier_turns_is_not_counted() -> None:
    thought = d.Thinking("let me see " * 100)
    earlier: list[d.Message] = [
        d.User("hello"),
        d.Assistant([thought, d.RedactedThinking("QUJD" * 100), d.Text("hi")]),
        d.User("more"),
    ]
    assert estimate_request(earlier) == estimate_request(
        [d.User("hello"), d.Assistant("hi"), d.User("more")]
    )
    during: list[d.Message] = [
        d.User("hello"), d.Assistant([thought, d.ToolCall("c1", "f", {})]), d.ToolResult("c1", "done"),
    ]  # fmt: skip
    without: list[d.Message] = [
        d.User("hello"), d.Assistant([d.ToolCall("c1", "f", {})]), d.ToolResult("c1", "done"),
    ]  # fmt: skip
    assert estimate_input_tokens(during) > estimate_input_tokens(without) + 200


def test_error_names_the_position_of_an_invalid_message() -> None:
    with pytest.raises(
        TypeError,
        match=r"^messages\[1\]: expected System, User, Assistant or ToolResult, not dict$",
    ):
        estimate_request([d.User("hello"), {"role": "user", "content": "hi"}])  # type: ignore[list-item]
    with pytest.raises(
        TypeError, match=r"^messages\[0\]\.content\[1\]: int is not a content block$"
    ):
        estimate_request([d.User([d.Text("hello"), 5])])  # type: ignore[list-item]


# --- token estimates of images and documents ---------------------------------------------------


def _inline(data: bytes) -> d.Inline:
    return d.Inline(base64.b64encode(data).decode())


def _png(width: int, height: int) -> bytes:
    return (
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
        + width.to_bytes(4, "big")
        + height.to_bytes(4, "big")
        + b"\x08\6\0\0\0"
    )


def _gif(width: int, height: int) -> bytes:
    return b"GIF89a" + width.to_bytes(2, "little") + height.to_bytes(2, "little") + b"\x80\0\0"


def _jpeg(width: int, height: int, *, before: int = 16) -> bytes:
    comment = b"\xff\xe1" + (before + 2).to_bytes(2, "big") + b"\xff" * before
    size = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    return b"\xff\xd8" + comment + b"\xff\xc2\0\x11\x08" + size + b"\3\1\x22\0"


def _picture(source: d.Inline | d.Url, family: str, **more: Any) -> int:
    with_picture = estimate_input_tokens(
        [d.User([d.Text("hello"), d.Image(source, "image/png", **more)])], family=family
    )
    return with_picture - _plain(family)


@pytest.mark.parametrize(
    ("family", "size", "expected"),
    read_table("image_tokens"),
)
def test_token_estimate_of_an_image_depends_on_its_size(
    family: str, size: tuple[int, int], expected: int
) -> None:
    for make in (_png, _gif, _jpeg):
        picture = _inline(make(*size))
        assert media_tokens.read_size(picture.base64_data) == tuple(size), make
        assert _picture(picture, family) == pytest.approx(expected, abs=1), make


def test_image_of_unknown_size_counts_as_1024_pixels() -> None:
    expected = _picture(_inline(_png(1024, 1024)), "claude")
    unread = (
        b"RIFF\0\0\0\0WEBP", b"", b"\xff\xd8", _png(9, 9)[:20], _gif(9, 9)[:8], _jpeg(9, 9)[:20],
        b"\xff\xd8\0\0" * 9,
    )  # fmt: skip
    sources: list[d.Inline | d.Url] = [
        d.Url("https://example.org/a.png"), d.Inline("%%%"), d.Inline("é"), *map(_inline, unread),
    ]  # fmt: skip
    for source in sources:
        assert _picture(source, "claude") == expected, source


def test_image_in_a_data_url_is_counted_like_inline_data() -> None:
    data = base64.b64encode(_png(750, 100)).decode()
    assert _picture(d.Url(f"data:image/png;base64,{data}"), "claude") == pytest.approx(100, abs=1)
    assert _picture(d.Url(f"https://example.org/?x=;base64,{data}"), "claude") > 1000


def test_low_detail_image_counts_fewer_tokens_if_the_model_is_known() -> None:
    picture = _inline(_png(1024, 1024))
    assert _picture(picture, "o200k", detail="low") == 85
    assert (
        _picture(picture, "o200k", detail="auto")
        == _picture(picture, "o200k", detail="high")
        == 765
    )
    assert _picture(picture, "claude", detail="low") == _picture(picture, "claude")


def test_size_of_an_image_with_a_thumbnail_is_found_or_estimated() -> None:
    near, far = (_inline(_jpeg(750, 100, before=before)) for before in (40_000, 60_000))
    assert _picture(near, "claude") == pytest.approx(100, abs=1)
    assert _picture(far, "claude") == _picture(_inline(_png(1024, 1024)), "claude")


def _document(source: d.Inline | d.Url, media_type: str = "application/pdf") -> int:
    message = d.User([d.Text("hello"), d.Document(source, media_type)])
    return estimate_input_tokens([message], family="o200k") - _plain()


def test_token_estimate_of_a_document_depends_on_its_size() -> None:
    assert _document(d.Inline("A" * 400_000)) == pytest.approx(10_000, abs=1)
    assert _document(d.Inline("A" * 1000)) == _document(d.Url("https://example.org/a.pdf")) == 500


def test_text_document_is_counted_as_text() -> None:
    text = TEXTS["english"]
    expected = estimate_text(text, "o200k").tokens
    data = base64.b64encode(text.encode()).decode()
    assert _document(d.Inline(data), "text/plain") == pytest.approx(expected, abs=1)
    assert _document(d.Url(f"data:text/plain;base64,{data}"), "text/plain") == pytest.approx(
        expected, abs=1
    )
    assert _document(_inline(b"\xff\xfe caf\xe9"), "text/plain") < 20
    assert _document(d.Inline("é%"), "text/plain") == 500


def test_error_band_is_wider_for_content_that_is_harder_to_estimate() -> None:
    text = [d.User(TEXTS["english"] * 10)]
    picture = [
        d.User([d.Text(TEXTS["english"] * 10), d.Image(d.Url("https://example.org/a.png"))])
    ]
    document = [d.User([d.Text("read this"), d.Document(d.Inline("A" * 400_000))])]
    bands = [
        estimate_request(messages, family="o200k").error_band
        for messages in (text, picture, document)
    ]
    assert bands == sorted(bands)
    assert bands[0] < 0.15
    assert bands[2] > 0.9


# --- calibrating estimates with reported usage -------------------------------------------------

GUESS = Estimate(1000, "heuristic", "qw152k", 0.1)


def _taught(*reports: int | None) -> Calibration:
    calibration = Calibration()
    for reported in reports:
        calibration = calibration.calibrate(GUESS, reported)
    return calibration


def test_reported_usage_corrects_the_next_estimate() -> None:
    better = _taught(1300, 1310, 1290, 1305, 1295).correct(
        msgspec.structs.replace(GUESS, tokens=200)
    )
    assert better == Estimate(260, "heuristic, calibrated", "qw152k", 0.008)


@pytest.mark.parametrize(
    ("reports", "factor"),
    [
        ((), 1.0),
        ((1200,), 1.2),
        ((1200, 1200, 9000), 1.2),
        ((1200, 1400), 1.3),
        ((1_000_000,), 4.0),
        ((1,), 0.25),
        ((None, 0, -5), 1.0),
        ((2000,) * 7 + (1000,) * 8, 1.0),
        ((2000,) * 20 + (1000,) * 7, 2.0),
    ],
)
def test_estimate_correction_is_a_bounded_median_of_recent_reports(
    reports: tuple[int | None, ...], factor: float
) -> None:
    calibration = _taught(*reports)
    assert calibration.factor == pytest.approx(factor)
    assert len(calibration.ratios) <= 15


def test_few_usage_reports_do_not_change_the_error_band() -> None:
    assert _taught(1300).correct(GUESS).error_band == GUESS.error_band
    assert _taught().correct(GUESS) is GUESS
    assert _taught(1000, 1000, 1000, 1000, 1500).correct(GUESS).error_band == 0.5


def test_calibration_returns_a_new_object() -> None:
    empty = Calibration()
    assert empty.calibrate(GUESS, 1300) == Calibration((1.3,))
    assert empty == Calibration()
    assert empty.calibrate(Estimate(0, "heuristic", "qw152k", 0.0), 5) is empty
    assert msgspec.json.decode(msgspec.json.encode(_taught(1300)), type=Calibration) == _taught(
        1300
    )


def test_corrected_estimate_cannot_be_used_for_calibration() -> None:
    corrected = _taught(1300).correct(GUESS)
    with pytest.raises(
        ValueError, match=r"^estimate: calibrate with the estimate as it was before correct\(\)"
    ):
        Calibration().calibrate(corrected, 1300)
