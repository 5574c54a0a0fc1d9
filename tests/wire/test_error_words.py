"""Each alternative in an error pattern is needed: without it, a case or an example in the
repository would get another error class.
"""

import os
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

import dragoman as d
from dragoman.wire.errors import Failure, Row, build_error, read_failure
from dragoman.wire.openai.errors import ROWS as OPENAI_ROWS

from .cases import find_cases
from .test_references import READERS, WIRES, rows_of

EXHAUSTIVE = os.environ.get("DRAGOMAN_EXHAUSTIVE") == "1"

# The class, status and text of errors that occur in no conformance case of the wire. A word before
# a vertical bar is the ``type`` of the error; slashes separate texts.
EXAMPLES: dict[str, list[tuple[type[d.ProviderError], int, str]]] = {
    "bedrock": [
        (d.QuotaExceededError, 429, "Too many tokens per day, please wait"),
        (d.ContextOverflowError, 400,
         "Input is too long for requested model. / The context window is full / The context "
         "length is exceeded"),
        (d.ContextOverflowError, 413, "The prompt is too long"),
        (d.InvalidModelError, 400,
         "Invocation with on-demand throughput isn't possible / The model x was not found"),
        (d.UnsupportedContentError, 400,
         "An image is not supported / A document is not supported / Video is not supported"),
        (d.UnsupportedFeatureError, 400,
         "Stop sequences are not supported / The value at toolConfig.tools.0.toolSpec.inputSchema"
         ".json.type must be one of the following: object."),
        (d.OverloadedError, 503,
         "The service has no capacity left / Bedrock is unable to process your request."),
    ],
    "cohere": [
        (d.MalformedToolCallError, 422, "INVALID_TOOL_GENERATION"),
        (d.ContextOverflowError, 400, "The prompt is too long"),
        (d.ContextOverflowError, 413, "The request is too large"),
        (d.ContextOverflowError, 422, "The input is too long"),
        (d.InvalidModelError, 422, "The model x does not exist"),
        (d.InvalidModelError, 404, "model 'command' was removed on September 15, 2025"),
        (d.UnsupportedContentError, 422, "A document is not supported"),
        (d.UnsupportedContentError, 400, "Audio is not supported"),
        (d.UnsupportedFeatureError, 400,
         "tool_choice is not supported with this model / seed is not supported by this model"),
        (d.UnsupportedFeatureError, 422, "thinking is not supported for this model"),
        (d.QuotaExceededError, 429,
         "The monthly limit of your key is reached / Add a method of billing to go on"),
    ],
    "openai": [
        (d.ContextOverflowError, 409,
         "context_length_exceeded / exceed_context_size_error / max_prompt_tokens_exceeded / "
         "This model's maximum context length is 8192 tokens"),
        (d.ContextOverflowError, 400,
         "The prompt is too long / Prompt too long / Too many input tokens / The context window "
         "is full / The context length is 512 / The request exceeds the context / The request "
         "exceeds the maximum of 512 tokens / The input is longer than 512 tokens / The prompt "
         "contains 9000 tokens / The input exceeded 512 tokens"),
        (d.ContextOverflowError, 422, "Too many tokens"),
        (d.ContextOverflowError, 500, "The available context size is 512"),
        (d.BillingError, 409, "billing_error / payment_required / Payment required"),
        (d.QuotaExceededError, 409,
         "insufficient_quota / insufficient_balance / You exceeded your current quota / "
         "billing_hard_limit_reached"),
        (d.QuotaExceededError, 403,
         "Insufficient balance / Insufficient funds / You are out of credits / Your credit is "
         "exhausted"),
        (d.AuthenticationError, 400, "invalid_api_key / The API key is not valid"),
        (d.ModelNotLoadedError, 503,
         "Loading the model / The model is still loading / model_not_loaded"),
        (d.ModelNotLoadedError, 409, "model_not_loaded"),
        (d.ModelNotLoadedError, 400, "No model is loaded"),
        (d.InvalidModelError, 400,
         "model_not_found / invalid_model / DeploymentNotFound / The deployment does not exist / "
         "The model x is not available / Unknown model x / No such model x / Unsupported model x "
         "/ The server is pinned to x"),
        (d.InvalidModelError, 422, "The model x was not found"),
        (d.InvalidModelError, 404, "The model x was deprecated / This is not a chat model"),
        (d.UnsupportedContentError, 404,
         "No endpoints found that support audio / No endpoints found that support video / No "
         "endpoints found that support file input / unexpected content part type"),
        (d.UnsupportedContentError, 400,
         "Image input is not supported / Audio input is not enabled / Video is not allowed / "
         "Vision is unsupported / Multimodal input is unsupported / Unsupported image / The "
         "model does not accept images / The model does not support vision / The model does not "
         "support audio / The model does not support video / The model does not support "
         "multimodal messages / The model does not support this media / Unsupported MIME type / "
         "Unknown content type / Unsupported content type / Invalid content part / Invalid "
         "content block / image_url takes strings only / unknown variant `image_url` / unknown "
         "variant `file`"),
        (d.UnsupportedFeatureError, 400,
         "unsupported_value / The model does not support the parameter top_k / The model does "
         "not support this tool_choice / The model does not support logprobs / top_k is not "
         "supported with this model / \"auto\" tool choice requires --enable-auto-tool-choice and "
         "--tool-call-parser to be set / tools.function.parameters is not a valid moonshot "
         "flavored json schema"),
        (d.OverloadedError, 503, "The server is at capacity / server_busy / There is no capacity"),
        (d.RateLimitError, 503, "rate_limit"),
    ],
    "anthropic": [
        (d.ContextOverflowError, 409,
         "exceed_context_size_error|The request is too large / context_length_exceeded"),
        (d.ContextOverflowError, 400,
         "The context window is full / The maximum context length is 512 / The available context "
         "size is 512 / The context is too large / The number of tokens exceeds the limit"),
        (d.BillingError, 400, "billing_error|Pay first"),
        (d.QuotaExceededError, 400, "You have reached your specified API usage limits"),
        (d.AuthenticationError, 400,
         "authentication_error|Who is it? / permission_error|Not for you"),
        (d.RateLimitError, 400, "rate_limit_error|Slower"),
        (d.InvalidRequestError, 503, "request_too_large|Smaller"),
        (d.UnavailableError, 400, "api_error|Sorry / timeout_error|Too slow"),
        (d.ModelNotLoadedError, 503, "Loading the model / The model is still loading"),
        (d.ModelNotLoadedError, 400, "The model is not currently loaded / No model is loaded"),
        (d.InvalidModelError, 400, "The model x was not found"),
        (d.UnsupportedContentError, 400,
         "messages.0.content.1: Input tag 'x' found / messages.0.content.1: does not match any "
         "of the expected tags / Document blocks are unsupported / PDF is not allowed / Audio is "
         "not allowed / Vision is not allowed / Unsupported image / The model does not support a "
         "document / The model does not support PDF / The model does not support audio / The "
         "model does not support vision / The model does not support multimodal messages / The "
         "model does not support this content block"),
        (d.UnsupportedFeatureError, 400, "tools: this model does not support tool use"),
        (d.OverloadedError, 503, "The server is overloaded"),
    ],
    "gemini": [
        (d.AuthenticationError, 400, "API key not valid / API key not found"),
        (d.QuotaExceededError, 429,
         "Requests per day / Your credits are depleted / Your credit is depleted / You have "
         "reached the spending cap"),
        (d.OverloadedError, 429,
         "The model is in high demand / MODEL_CAPACITY_EXHAUSTED / There is no capacity"),
        (d.ModelNotLoadedError, 503, "Loading the model"),
        (d.UnsupportedContentError, 400,
         "Audio input modality is not supported / The MIME type text/x is not supported / Unable "
         "to process input video / Unable to process input audio / Wrong value in inline_data / "
         "Wrong value in fileData"),
    ],
    "responses": [
        (d.UnsupportedContentError, 400,
         "unsupported_image_media_type / 'input_image' is not supported / 'input_audio' is not "
         "supported"),
    ],
}  # fmt: skip


def failure_of(words: str) -> Failure:
    kind, bar, message = words.rpartition("|")
    if not bar and "_" in message and " " not in message:  # the message is only an error code
        return Failure(code=message)
    return Failure(message, kind=kind)


@pytest.mark.parametrize("wire", EXAMPLES)
def test_text_of_an_error_decides_its_class(wire: str) -> None:
    for kind, status, texts in EXAMPLES[wire]:
        for words in texts.split(" / "):
            found = build_error(status, {}, failure_of(words), rows_of(wire))
            assert type(found) is kind, words


def failures_of(wire: str) -> list[tuple[int, Failure]]:
    cases = [case for case in find_cases(wire, "error.json") if case.reply is not None]
    found = [
        (case.options.status, READERS.get(wire, read_failure)(case.reply or b"")) for case in cases
    ]
    for _, status, texts in EXAMPLES.get(wire, ()):
        found += [(status, failure_of(words)) for words in texts.split(" / ")]
    return found


def without_one_alternative(pattern: str) -> Iterator[tuple[str, str]]:
    """Yield each alternative of a pattern, together with the pattern without this alternative."""
    stack: list[list[int]] = [[0]]
    spans: list[tuple[int, int]] = []
    for at, sign in enumerate(pattern):
        if sign == "(":
            stack.append([at + 1])
        elif sign == "|":
            stack[-1].append(at + 1)
        elif sign == ")":
            starts = stack.pop()
            spans += zip(starts, [*[start - 1 for start in starts[1:]], at], strict=True)
    starts = stack.pop()
    spans += zip(starts, [*[start - 1 for start in starts[1:]], len(pattern)], strict=True)
    for start, end in spans:
        yield pattern[start:end], f"{pattern[:start]}(?!){pattern[end:]}"


def survivors(wire: str) -> list[str]:
    """Return the alternatives in error patterns that could be removed without changing any error
    class.
    """
    rows, found = rows_of(wire), []
    decided = [[each for each in failures_of(wire) if row_for(rows, *each) is row] for row in rows]
    for at, (row, failures) in enumerate(zip(rows, decided, strict=True)):
        if wire != "openai" and row in OPENAI_ROWS:
            continue
        expected = [(*each, type(build_error(each[0], {}, each[1], rows))) for each in failures]
        alternatives = list(without_one_alternative(row.pattern))
        for alternative, pattern in alternatives[:: 1 if EXHAUSTIVE else 3]:
            left = (replace(row, pattern=pattern), *rows[at + 1 :])  # no earlier row fits these
            if all(
                type(build_error(status, {}, failure, left)) is kind
                for status, failure, kind in expected
            ):
                found.append(f"{sorted(row.statuses or ())} {row.pattern}: {alternative}")
    return found


def row_for(rows: tuple[Row, ...], status: int, failure: Failure) -> Row | None:
    """Return the row of an error table that decides the class of an error."""
    return next((row for row in rows if row.fits(status, failure)), None)


@pytest.mark.parametrize("wire", WIRES)
def test_rows_of_an_error_table_apply_to_their_statuses_only(wire: str) -> None:
    for status, failure in failures_of(wire):
        row = row_for(rows_of(wire), status, failure)
        assert row is None or row.statuses is None or not row.fits(418, failure), failure


@pytest.mark.exhaustive
@pytest.mark.no_cover  # the other tests read the same errors
@pytest.mark.parametrize("wire", WIRES)
def test_every_alternative_in_an_error_pattern_is_needed(wire: str) -> None:
    assert survivors(wire) == []
