"""Quirks: settings for the differences between servers and models of the Responses wire."""

from __future__ import annotations

from typing import Literal

from ..ids import IdRule, NameRule
from ..quirks import ResultQuirks


class Quirks(ResultQuirks, frozen=True):
    """How a server of the Responses wire differs from others. The defaults suit hosted OpenAI."""

    name_rule: NameRule | None = NameRule(64)
    """Which tool names the server accepts. Open Responses allows 64 letters, digits, underscores
    and dashes.
    """

    structured: Literal["native", "prompt"] = "native"
    """How a ``response_schema`` is requested: in the field ``text.format``, or in the prompt.
    llama.cpp silently ignores this field, so it needs ``prompt``
    [llamaserver_qwen25coder_fence__resp_json_schema]. A 400 switches to ``prompt`` automatically.
    """

    strict_schemas: bool = True
    """Whether strict decoding is requested for response schemas that meet its rules. A 400 about a
    schema turns strict decoding off for that schema.
    """

    encrypted_reasoning: bool = True
    """Whether encrypted reasoning is requested (``include: reasoning.encrypted_content``). A
    stateless conversation loses its reasoning without it, because only encrypted reasoning can be
    sent back. OpenAI models that do not reason answer 400 to this field; then it is no longer
    sent.
    """

    send_reasoning: Literal["encrypted", "all"] = "encrypted"
    """Which reasoning is sent back to its issuer. Hosted OpenAI accepts only encrypted reasoning
    when it stores nothing. Servers of open models (DeepSeek, LM Studio, bedrock-mantle) send plain
    reasoning and accept it back, so they need ``all``.
    """

    reasoning_summary: Literal["auto", "concise", "detailed"] | None = None
    """The kind of reasoning summary to request; by default none. Hosted OpenAI sends summaries
    only on request. Models that do not reason answer 400 to the request.
    """

    strict_tools: bool = True
    """Whether strict decoding is requested for tools whose schema meets its rules. Other tools are
    sent with ``strict: false``, because otherwise OpenAI rewrites their schema and makes optional
    arguments required. A 400 about a tool's schema turns strict decoding off for all tools.
    """

    assistant_text: Literal["parts", "plain"] = "parts"
    """How the model's text is sent back: as a part of type ``output_text``, or as a string. vLLM
    answers 400 to parts, because it validates the item as an output item, which requires an id and
    a status.
    """

    silent_cut: bool = False
    """Whether a reply with ``max_tokens`` tokens counts as truncated, because the server reports a
    truncated reply as completed (llama.cpp) [llamaserver_random__resp_basic].
    """

    id_rule: IdRule | None = IdRule(64, also="_-.:|/+= ")
    """Which tool-call ids the server accepts. OpenAI accepts at most 64 characters, even for ids
    that it generated.
    """

    readiness: Literal["auto", "models", "health", "state", "resident"] = "auto"
    """How readiness is checked. Every method looks for the model in the model list. ``health``
    also requests ``/health`` (llama.cpp, vLLM, SGLang). ``state`` also reads the states of models
    in LM Studio. ``resident`` also reads Ollama's list of models in memory. ``auto`` chooses
    ``state``, ``resident`` or ``health`` by the owner in the model list.
    """

    any_model: bool = False
    """Whether the server has one model and serves it under every name (llama.cpp)."""

    cache_key: bool = True
    """Whether calls with ``cache="auto"`` send the session id as ``prompt_cache_key``, so that all
    calls of a session use the same cache.
    """

    additional_tools: bool = False
    """Whether the server takes tools in input items of type ``additional_tools``, as hosted OpenAI
    does. Other servers answer 400 or 422 (xAI: router-for-me/CLIProxyAPI#4434; Azure:
    openai/codex#31882; seen 2026-11-18), so the tools of a client's item are sent in ``tools``.
    A 400 about the item turns it off.
    """

    tool_kinds: Literal["functions", "all"] = "functions"
    """Which tools of a client of this wire the server takes. Hosted OpenAI and Azure take custom
    tools and namespaces, which Codex offers. Other servers refuse them (xAI: maximhq/bifrost#5428,
    router-for-me/CLIProxyAPI#5257; Ollama: ollama/ollama#17618; gpt-oss in vLLM:
    vllm-project/vllm#49493) or skip them silently (llama.cpp: ggml-org/llama.cpp#23465; seen
    2026-11-19), so they are sent as functions, and so are their calls. A 400 about a kind of tool
    turns ``all`` off.
    """

    external_web_access: bool = False
    """Whether the web search takes the field ``external_web_access``, with which Codex asks for
    cached pages alone. Hosted OpenAI takes it. xAI answers 400 (NOirBRight/CodexHub#517,
    lidge-jun/opencodex#2240), and Azure's tool has no such field (obot-platform/obot#7418,
    Azure.AI.Extensions.OpenAI; seen 2026-11-19). Other servers search live pages, so ``true`` is
    not sent, and a search with ``false`` is left out. A 400 about the field turns it off.
    """

    cache_form: Literal["retention", "breakpoints"] = "retention"
    """How the prompt cache is controlled. ``retention``: the cache is automatic, and
    ``prompt_cache_retention`` sets how long it is kept. ``breakpoints``: cache marks are sent as
    ``prompt_cache_breakpoint``, and ``prompt_cache_options`` has the settings, which hosted OpenAI
    accepts from GPT-5.6 on instead of the retention (ax-llm/ax#573, earendil-works/pi#6528).
    """

    tool_search: bool = True
    """Whether the server searches deferred tools (OpenAI since GPT-5.4).
    A 400 about the search turns it off; then every tool is sent.
    """

    compaction: bool = True
    """Whether the server compacts a conversation that is too long (OpenAI since GPT-5.2). A 400
    about ``context_management`` turns it off.
    """

    parallel_tools: bool = True
    """Whether the model may make several calls in one turn. With ``False``, every request with
    tools also has the field that turns parallel calls off. The capability
    ``supports_parallel_tool_calls: false`` sets this quirk to ``False``.
    """

    socket: bool = False
    """Whether requests are sent over a WebSocket that stays open, as hosted OpenAI, Azure, xAI and
    Dragoman's gateway offer it. It needs the extra ``socket``.
    """
