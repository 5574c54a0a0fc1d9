"""Classify errors of the openai wire by a table of patterns."""

from __future__ import annotations

import re

from ... import errors as e
from ..errors import ErrorRow, Failure, build_inband_error, row, rows


def inband_error(failure: Failure) -> e.ProviderError:
    """Return the error in a reply with status 200, classified by the status, code or type in it.

    An error without a known status, code or type becomes a server error.
    """
    words = f"{failure.code} {failure.kind}"
    status = next((status for pattern, status in _INBAND if pattern.search(words)), 500)
    return build_inband_error(failure.code, status, failure, ROWS)


_INBAND = (
    (re.compile(r"auth|api_?key|permission", re.I), 401),
    (re.compile(r"rate_?limit|throttl|too_many", re.I), 429),
    (re.compile(r"not_found", re.I), 404),
    # Groq sends tool_use_failed if the model wrote an invalid tool call (case:
    # openai/event-error-at-once).
    (re.compile(r"invalid|bad_request|tool_use_failed", re.I), 400),
    # Azure sends content_filter if its content filter acted (case: openai/error-in-band-filter).
    (re.compile(r"content_filter", re.I), 400),
)


ROWS: tuple[ErrorRow, ...] = (
    # OpenAI's safety checks. The decision is final: a repeated request flags the account again
    # (openai/codex#43131; lidge-jun/opencodex#483; seen 2026-11-18; cases: openai/safety-stop,
    # responses/safety-stop-stream).
    row("", r"^\w+_policy(_violation)? ", e.InvalidRequestError),
    # Errors about an exceeded context window. The texts differ between servers.
    *rows(
        e.ContextOverflowError,
        ("", r"context_length_exceeded|exceed_context_size"),
        ("", r"max_prompt_tokens_exceeded|maximum context length"),
        ("400 413 422 500", r"(prompt|input) (is )?too long|too many (input )?tokens"),
        ("400 413 422 500", r"context (window|length|size)|reduce the length of the messages"),
        ("400 413 422 500", r"exceeds?.{0,40}(context|max.{0,24}tokens)"),
        ("400 413 422 500", r"(input|prompt).{0,60}(exceed|longer than|contains).{0,60}tokens"),
        ("400 413 422", r"exceed.{0,24}token limit|inputs.{0,40}must (be <=|have less than)"),
        # Moonshot, Z.ai (code 1261) and DashScope (QwenLM/Qwen-Agent#615), seen 2026-11-18 (cases:
        # openai/overflow-moonshot, openai/overflow-zai, openai/overflow-dashscope)
        ("400", r"prompt exceeds max length"),
        ("400", r"range of input length should be"),
        # Baidu's codes (cloud.baidu.com/doc/qianfan-api/s/rmwbl43x7, 2026-11-11; seen 2026-11-20;
        # cases: openai/overflow-baidu, openai/overflow-baidu-characters)
        ("400", r"(tokens|characters)_too_long"),
        # Groq (413) and OpenAI (429): the request alone exceeds the tokens that the account has in
        # a minute, so waiting does not help, but a shorter request does (openclaw/openclaw#130275,
        # Alishahryar1/free-claude-code#1634, both of 2026-08; openai/codex#34465 and #38366 of
        # 2026, sent again each time; continuedev/continue#10602, 2026-02; seen 2026-11-19; cases:
        # openai/overflow-tokens-per-minute, openai/overflow-tokens-per-min)
        ("413 429", r"request too large.{0,160}tokens per min"),
        # GitHub Models has limits below the context window (eslint/tsc-meetings#593, 2025-07;
        # cline/cline#2115; tashfeenahmed/freellmapi#426, 2026-06; seen 2026-11-19; case:
        # openai/overflow-github).
        ("413", r"tokens_limit_reached|request body too large.{0,60}tokens"),
    ),
    # Venice answers 402 to a missing key, too (clawnchdev/clawmes#44, tried with a key; seen
    # 2026-11-20; case: openai/key-venice).
    row("402", r"authentication required", e.AuthenticationError),
    # errors about missing credit
    row("", r"\bbilling_error\b|payment[_ ]required", e.BillingError),
    # DashScope reports an overdue account with a 400 (case: openai/overdue-dashscope).
    row("400", r"\barrearage\b", e.BillingError),
    # Missing credit with a 403: Volcengine (www.volcengine.com/docs/82379/1299023, 2025-11-07),
    # SiliconFlow (FoundationAgents/OpenManus#438, 2025-03) and Novita (docs.jiekou.ai/en/docs/
    # models/reference-error-code; huggingface/hub-docs#2392, 2026-04); seen 2026-11-20 (cases:
    # openai/overdue-volcengine, openai/balance-siliconflow, openai/balance-novita).
    *rows(
        e.BillingError,
        ("403", r"overdue balance"),
        ("403", r"balance is insufficient"),
        ("403", r"not enough balance"),
    ),
    # Ollama's cloud has models for subscribers (ollama/ollama#15990, #15741, 2026-05;
    # case: openai/subscription-ollama-cloud).
    row("403", r"model requires a subscription", e.BillingError),
    # MiniMax sends errors with status 200 (MiniMax-AI/MiniMax-M2.5#18, seen 2026-11-18; cases:
    # openai/base-resp-key, openai/base-resp-balance). This is the only source, so other codes
    # are not classified.
    row("", r"^(1004|2049) base_resp ", e.AuthenticationError),
    row("", r"^1008 base_resp ", e.BillingError),
    *rows(
        e.QuotaExceededError,
        ("", r"insufficient_(quota|balance)|exceeded your current quota"),
        ("", r"billing_(hard_limit|not_active)"),
        ("400 403 429", r"insufficient (credits|balance|funds)|out of credits"),
        ("400 403 429", r"(credit|quota).{0,30}exhausted"),
        # DashScope (case: openai/free-tier-dashscope) and Z.ai, whose limit (code 1308) ends after
        # hours (case: openai/usage-limit-zai); seen 2026-11-18
        ("403", r"AllocationQuota\.FreeTierOnly"),
        ("429", r"usage limit reached"),
        # The plans of Ollama's cloud (continuedev/continue#11444, 2026-03) and Kimi
        # (NanmiCoder/cc-haha#1208, 2026-08), and the free neurons of Cloudflare
        # (diegosouzapw/OmniRoute#6980; developers.cloudflare.com/workers-ai/platform/errors)
        # end for hours or days; seen 2026-11-19 (cases: openai/usage-limit-ollama-cloud,
        # openai/free-neurons-cloudflare).
        ("403 429", r"reached your .{0,20}usage limit"),
        ("429", r"daily free allocation"),
        # The safety limit of a Volcengine account, until the user raises it (volcengine/
        # MineContext#328, 2026-01; seen 2026-11-20; case: openai/paused-volcengine)
        ("429", r"reached the set inference limit"),
    ),
    # xAI and Google's compatible endpoint report invalid credentials with a 400.
    row(
        "400",
        r"(incorrect|invalid)[_ ]api[_ ]?key|api[_ ]?key.{0,20}not valid",
        e.AuthenticationError,
    ),
    # errors about a model that is unknown or not loaded
    *rows(
        e.ModelNotLoadedError,
        ("503", r"loading (the )?model|model.{0,40}loading|model_not_loaded"),
        ("400 404 409 500", r"model.{0,80}not (currently )?loaded|model_not_loaded"),
        ("400 404 409 500", r"no models? (is )?loaded"),
    ),
    *rows(
        e.InvalidModelError,
        ("400 404 422", r"model_not_found|invalid[_ ]model|DeploymentNotFound"),
        ("400 404 422", r"(model|deployment).{0,120}(not exist|not found|not available)"),
        ("400 404 422", r"(unknown|no such|unsupported) model\b|not a valid model"),
        ("400 404", r"the model .{0,80}(decommissioned|deprecated)|not a chat model"),
        ("400 404", r"period for this model has ended"),
        ("400", r"supported API model names"),
        # Hugging Face's router and GitHub Copilot (huggingface/smolagents#2584, 2026-07;
        # cline/cline#5098; caozhiyuan/copilot-api#253, 2026-05; seen 2026-11-20; case:
        # openai/model-huggingface)
        ("400", r"model_not_supported"),
        # A model of Databricks is an endpoint (databricks-demos/dbdemos#220; seen 2026-11-19;
        # case: openai/endpoint-databricks).
        ("404", r"endpoint.{0,120}not exist"),
        ("400 404", r"cached snapshot folder|server is pinned to"),
    ),
    # OpenRouter finds no endpoint that supports the request, or no endpoint that has the model.
    row(
        "404",
        r"no endpoints found that support (image|audio|video|file)",
        e.UnsupportedContentError,
    ),
    row("404", r"no endpoints found that support", e.UnsupportedFeatureError),
    row("404", r"no endpoints found", e.InvalidModelError),
    # Content that the model does not accept. llama.cpp reports it with a 500.
    *rows(
        e.UnsupportedContentError,
        (
            "400 404 415 422 500 501",
            r"(image|audio|video|vision|multimodal).{0,60}(not support|unsupported|not allowed"
            r"|not enabled)",
        ),
        ("400", r"not a multimodal model"),
        (
            "400 404 415 422 500 501",
            r"(not support|unsupported"
            r"|not accept).{0,60}(image|vision|audio|video|multimodal|media|mime type)",
        ),
        ("400 415 422", r"(invalid|unknown|unsupported).{0,30}content (type|part|block)"),
        ("400 404 415 422 500", r"content part type|mmproj|image_url.{0,40}only"),
        # Groq, DeepSeek and mlx-lm reject content blocks where they accept only text.
        # llama-cpp-python fails with a Python error instead.
        ("400", r"content must be a string"),
        ("400", r"unknown variant .(\w+_url|input_audio|file)"),
        ("404", r"only 'text' content"),
        ("500", r"can only concatenate str"),
    ),
    # settings and tools that the model does not support
    *rows(
        e.UnsupportedFeatureError,
        ("400 422", r"unsupported[_ ](parameter|value)"),
        # DeepInfra answers 405, DashScope 400 (truefoundry/models#944,
        # spring-ai-alibaba/website#39; seen 2026-11-19).
        ("400 405", r"tool call\w* is not supported"),
        (
            "400 404 422",
            r"not support(ed with this model|.{0,80}(parameter|response format|tool|logprobs))",
        ),
        ("400", r"model features .{0,40}not support"),
        ("400 500", r"requires --(jinja|enable-auto-tool-choice)"),
        # OpenAI, DeepSeek and Moonshot accept different parts of JSON Schema; another model may
        # accept the same tool.
        ("400", r"invalid schema for function|parameters is not a valid"),
    ),
    # llama-cpp-python reports an invalid request with a 500. A retry would not help, so the error
    # is classified as an invalid request.
    row("500", r"\d validation errors?:", e.InvalidRequestError),
    # Overload, including errors that a router forwards inside its own error.
    row("429 500 503", r"overloaded|at capacity|server_busy|no capacity", e.OverloadedError),
    # Groq's flex tier has no capacity left (console.groq.com/docs/errors; laravel/ai#925, 2026-08;
    # seen 2026-11-19; case: openai/flex-capacity).
    row("498", r"", e.OverloadedError),
    row("400 500 503", r"\bthrottl|rate[_ ]?limit", e.RateLimitError),
    # A router forwards the error of a server with a status of its own.
    row("400 422", r"^\S* server_error ", e.UnavailableError),
)
