"""Test which betas a wire sends on, and which fields they release."""

import pytest

from dragoman.errors import InvalidRequestError
from dragoman.messages import Request, ServerTool, User
from dragoman.wire import CODECS, SERVER_CODECS
from dragoman.wire.rules import HINT, NO_BETAS, UNKNOWN, Betas, FieldRule

CODEC = SERVER_CODECS["anthropic"]
HEADER = "anthropic-beta"


@pytest.mark.parametrize(
    ("header", "allowed", "betas"),
    [
        ("", ("default",), NO_BETAS),
        ("pdfs-2024-09-25, ,oauth-1", ("default",), Betas(("pdfs-2024-09-25",), ("oauth-1",))),
        ("pdfs-2024-09-25,oauth-1", ("oauth-*",),
         Betas(("oauth-1",), ("pdfs-2024-09-25",), ("oauth-*",))),
        ("pdfs-2024-09-25,oauth-1", ("oauth-1", "default"),
         Betas(("pdfs-2024-09-25", "oauth-1"), (), ("oauth-1",))),
        ("default", ("none",), Betas((), ("default",), ("none",))),
        ("", ("default", "fast-mode-*"), Betas((), (), ("fast-mode-*",))),
    ],
)  # fmt: skip
def test_betas_of_a_header_are_sorted_by_the_list(
    header: str, allowed: tuple[str, ...], betas: Betas
) -> None:
    assert CODEC.read_betas({HEADER: header}, allowed) == betas
    assert SERVER_CODECS["openai"].read_betas({HEADER: header}, allowed) == Betas(
        allowed=betas.allowed
    )


def test_field_is_blocked_unless_one_of_its_betas_is_sent() -> None:
    strict = FieldRule("hint", betas=("a-*", "b-*"))
    released = FieldRule("hint", betas=("a-*",), released=True)
    rules = {"plain": HINT, "unknown": UNKNOWN, "strict": strict, "released": released}
    blocked = {
        betas: [name for name, rule in rules.items() if betas.block(rule)]
        for betas in (NO_BETAS, Betas(("b-1",)), Betas((), ("a-1",)), Betas((), ("c-1",)))
    }
    priced = FieldRule("hint", betas=("a-*",), opt_in="a-")
    assert [
        betas.block(priced)
        for betas in (NO_BETAS, Betas(("b-1",)), Betas(("a-1",)), Betas((), (), ("a-*",)))
    ] == [True, True, False, False]
    assert [*blocked.values()] == [
        ["strict"],
        [],
        ["unknown", "strict", "released"],
        ["unknown", "strict"],
    ]


def test_codec_sends_betas_of_the_request_and_its_tools_in_one_header() -> None:
    codec = CODECS["anthropic"]("m", "http://x/v1", max_output_tokens=9)
    native = {"anthropic": {"betas": ("a-1", "code-execution-2025-08-25"), "top_k": 3}}
    tools = (ServerTool("code_execution"), ServerTool("url_context"))
    sent = codec.encode(Request([User("Hi")], native=native, server_tools=tools)).http
    assert sent.headers[HEADER] == "a-1,code-execution-2025-08-25,web-fetch-2025-09-10"
    assert b'"top_k":3' in sent.body
    assert b"a-1" not in sent.body


NAMED = "Unexpected value(s) `code-execution-2025-08-25` for the `anthropic-beta` header."


@pytest.mark.parametrize(
    ("message", "sent"),
    [(NAMED, "a-1"), ("invalid beta flag", None), ("temperature: too high", "unchanged")],
)
def test_betas_that_a_server_refuses_are_left_out_and_reported(
    message: str, sent: str | None
) -> None:
    codec = CODECS["anthropic"]("m", "http://x/v1", max_output_tokens=9)
    native = {"anthropic": {"betas": ("a-1", "code-execution-2025-08-25")}}
    request = Request([User("Hi")], native=native)
    error = InvalidRequestError("no", status=400, provider_message=message)
    taught = codec.learn(error, request)
    if sent == "unchanged":
        assert taught is None
        return
    assert taught is not None
    encoded = taught.encode(request)
    assert encoded.http.headers.get(HEADER) == sent
    refused = "code-execution-2025-08-25" if sent else "a-1"
    assert f"{HEADER}[{refused}]" in [each.path for each in encoded.warnings]
    assert taught.learn(error, request) is None


def test_refused_betas_that_were_not_sent_teach_nothing() -> None:
    codec = CODECS["anthropic"]("m", "http://x/v1", max_output_tokens=9)
    error = InvalidRequestError("no", status=400, provider_message=NAMED)
    assert codec.learn(error, Request([User("Hi")])) is None
