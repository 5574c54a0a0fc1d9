"""Reading a refusal: the words servers of this wire use, each row with a recorded exchange that proves it."""

from __future__ import annotations

import re

from ...errors import (
    AuthenticationError,
    ContextOverflowError,
    InvalidModelError,
    InvalidRequestError,
    ModelNotLoadedError,
    OverloadedError,
    ProviderError,
    QuotaExceededError,
    RateLimitError,
    UnsupportedContentError,
    UnsupportedFeatureError,
)
from ..errors import Failure, Row, build_error, row


def inband_error(failure: Failure) -> ProviderError:
    """An error object inside a 200: by the status it names, by its words, else a failing server."""
    if re.fullmatch(r"[45]\d\d", failure.code):
        return build_error(int(failure.code), {}, failure, ROWS)
    words = f"{failure.code} {failure.kind}"
    status = next((status for pattern, status in _INBAND if pattern.search(words)), 500)
    return build_error(status, {}, failure, ROWS)


_INBAND = (
    (re.compile(r"auth|api_?key|permission", re.I), 401),
    (re.compile(r"rate_?limit|throttl|too_many", re.I), 429),
    (re.compile(r"not_found", re.I), 404),
    (re.compile(r"invalid|bad_request|tool_use_failed", re.I), 400),  # Groq: failed_generation [36c3b056-a6934672]
    (re.compile(r"content_filter", re.I), 400),  # Azure [78307849-4333144b]
)


ROWS: tuple[Row, ...] = (
    # the context window, in each server's words
    row("", r"context_length_exceeded|exceed_context_size", ContextOverflowError, "f9d2239f-7f64312d"),
    row("", r"max_prompt_tokens_exceeded|maximum context length", ContextOverflowError, "063246a4-f14e84c2"),
    row(
        "400 413 422 500", r"prompt (is )?too long|too many (input )?tokens", ContextOverflowError, "6e890ee6-1973213d"
    ),
    row("400 413 422 500", r"context (window|length|size)|reduce the length of the messages", ContextOverflowError),
    row("400 413 422 500", r"exceeds?.{0,40}(context|max(imum)?.{0,20}tokens)", ContextOverflowError),
    row("400 413 422 500", r"(input|prompt).{0,60}(exceed|longer than|contains).{0,60}tokens", ContextOverflowError),
    # credit
    row("", r"insufficient_(quota|balance)|exceeded your current quota", QuotaExceededError),
    row("", r"billing_(hard_limit|not_active)", QuotaExceededError),
    row("400 403 429", r"insufficient (credits|balance|funds)|out of credits", QuotaExceededError),
    row("400 403 429", r"(credit|quota).{0,30}exhausted", QuotaExceededError),
    # credentials refused with a 400: xAI, Google's compatible endpoint
    row(
        "400",
        r"(incorrect|invalid)[_ ]api[_ ]?key|api[_ ]?key.{0,20}not valid",
        AuthenticationError,
        "9bf8ff9d-c5b68e81",
    ),
    # the model
    row(
        "503", r"loading (the )?model|model.{0,40}loading|model_not_loaded", ModelNotLoadedError, "llamaserver: loading"
    ),
    row("400 404 409 500", r"model.{0,80}not (currently )?loaded|model_not_loaded", ModelNotLoadedError),
    row("400 404 409 500", r"no models? (is )?loaded", ModelNotLoadedError),
    row("400 404 422", r"model_not_found|invalid[_ ]model|DeploymentNotFound", InvalidModelError, "e725d7f9-c7f60de4"),
    row("400 404 422", r"(model|deployment).{0,120}(not exist|not found|not available)", InvalidModelError),
    row("400 404 422", r"(unknown|no such|unsupported) model\b|not a valid model", InvalidModelError),
    row(
        "400 404",
        r"the model .{0,80}(decommissioned|deprecated)|not a chat model",
        InvalidModelError,
        "40e6864c-4697c185",
    ),
    row("400 404", r"period for this model has ended", InvalidModelError, "e6a315f7-61f171b2"),
    row("400", r"supported API model names", InvalidModelError, "945b2c24-cf4e6c55"),
    row(
        "400 404", r"cached snapshot folder|server is pinned to", InvalidModelError, "mlxlm_smollm2: err_unknown_model"
    ),
    # a router that has the model, though not with what was asked for; and one that does not have it
    row(
        "404", r"no endpoints found that support (image|audio|video|file)", UnsupportedContentError, "e25539da-020c2f62"
    ),
    row("404", r"no endpoints found that support", UnsupportedFeatureError, "6f529d39-a583928b"),
    row("404", r"no endpoints found", InvalidModelError, "f8f230aa-bcb53276"),
    # content the model cannot read; llama.cpp says so with a 500
    row(
        "400 404 415 422 500 501",
        r"(image|audio|video|vision|multimodal).{0,60}(not support|unsupported|not allowed|not enabled)",
        UnsupportedContentError,
        "d378f843-fd805ff4",
    ),
    row("400", r"not a multimodal model", UnsupportedContentError, "b27a9c96-6eb51cce"),
    row(
        "400 404 415 422 500 501",
        r"(not support|unsupported|not accept).{0,60}(image|vision|audio|video|multimodal|media|mime type)",
        UnsupportedContentError,
        "535097db-09e1bfde",
    ),
    row("400 415 422", r"(invalid|unknown|unsupported).{0,30}content (type|part|block)", UnsupportedContentError),
    row("400 404 415 422 500", r"content part type|mmproj|image_url.{0,40}only", UnsupportedContentError),
    # blocks where only text is taken: Groq, DeepSeek, mlx-lm, and llama-cpp-python by its own accident
    row("400", r"content must be a string", UnsupportedContentError, "bdc54795-ebf3c29e"),
    row("400", r"unknown variant .(\w+_url|input_audio|file)", UnsupportedContentError, "69f94b60-4702afe4"),
    row("404", r"only 'text' content", UnsupportedContentError, "mlxlm_smollm2: err_image"),
    row("500", r"can only concatenate str", UnsupportedContentError, "servers: err_image"),
    # settings and tools the model does not have
    row("400 422", r"unsupported_(parameter|value)", UnsupportedFeatureError, "bf02440a-156e7e44"),
    row(
        "400 404 422",
        r"not support(ed with this model|.{0,80}(parameter|response format|tool_choice|logprobs))",
        UnsupportedFeatureError,
        "3c3a221e-28e83f89",
    ),
    row("400", r"model features .{0,40}not support", UnsupportedFeatureError, "8b3dd1b3-d0307fce"),
    row("500", r"requires --jinja", UnsupportedFeatureError, "9af4756f-ad9d7c09"),
    # llama-cpp-python refuses a bad request with a 500, which would be tried again and again
    row("500", r"\d validation errors?:", InvalidRequestError, "servers: err_temp_string"),
    # load, also where a router wraps its upstream's refusal
    row("429 500 503", r"overloaded|at capacity|server_busy|no capacity", OverloadedError),
    row("400 500 503", r"\bthrottl|rate[_ ]?limit", RateLimitError, "a48aa930-20401914"),
)
