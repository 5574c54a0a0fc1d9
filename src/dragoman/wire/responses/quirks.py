"""Quirks: how servers and models of this wire differ, as data."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ...reasoning import ReasoningStyle
from ..ids import IdRule


class Quirks(Struct, frozen=True, forbid_unknown_fields=True):
    """How a server or model of this wire differs from the others. The defaults suit hosted OpenAI.

    The documentation of each field names the servers that need it and, in brackets, a recorded
    exchange that shows it.
    """

    result_media: Literal["inside", "omit"] = "inside"
    """Where images and documents of a tool result are sent: in the result, or nowhere (``omit``),
    with a text in their place. ``omit`` is used for models that are known not to accept images."""

    structured: Literal["native", "prompt"] = "native"
    """Whether ``text.format`` with a JSON Schema works. llama.cpp silently ignores it, so it needs
    ``prompt`` [llamaserver_qwen25coder_fence__resp_json_schema]; a 400 switches to ``prompt``
    automatically."""

    strict_schemas: bool = True
    """Mark a response schema as strict where it meets the rules of strict decoding. A 400 about a
    schema turns it off for that schema.
    """

    encrypted_reasoning: bool = True
    """Request reasoning in a form that can be sent back (``include:
    reasoning.encrypted_content``): without it a stateless conversation loses its reasoning. OpenAI
    models that do not reason answer 400 to it; then it is no longer sent.
    """

    send_reasoning: Literal["encrypted", "all"] = "encrypted"
    """Which reasoning is sent back to its issuer. Hosted OpenAI accepts only encrypted reasoning
    when nothing is stored. Servers of open models (DeepSeek, LM Studio, bedrock-mantle) send plain
    reasoning and accept it back: ``all``.
    """

    reasoning_summary: Literal["auto", "concise", "detailed"] | None = None
    """Request a summary of the reasoning, which hosted OpenAI sends only on request. Models that
    do not reason answer 400.
    """

    strict_tools: bool = True
    """Mark tools whose schema meets strict mode's rules as strict; all others are marked as not
    strict, because OpenAI otherwise rewrites their schema and makes optional arguments required. A
    400 about the schema of a tool turns it off.
    """

    assistant_text: Literal["parts", "plain"] = "parts"
    """How text of the model is sent back: as a part of ``output_text``, or as a string. vLLM
    validates parts as an output item, which requires an id and a status, and answers 400 without
    them.
    """

    silent_cut: bool = False
    """A reply with ``max_tokens`` tokens counts as truncated, although the server reports it as
    completed (llama.cpp) [llamaserver_random__resp_basic].
    """

    id_rule: IdRule | None = IdRule(64, also="_-.:|/+= ")
    """Which tool-call ids the server accepts. OpenAI: at most 64 characters, even for ids that it
    generated.
    """

    readiness: Literal["auto", "models", "health", "state", "resident"] = "auto"
    """How readiness is checked. ``health``: llama.cpp, vLLM, SGLang; ``state``: LM Studio's own
    model list; ``resident``: Ollama's list of models in memory; ``models``: hosted; ``auto``:
    models, then health.
    """

    any_model: bool = False
    """The server has one model and serves it under every name (llama.cpp)."""

    reasoning: ReasoningStyle | None = None
    """How ``config.reasoning`` is sent; by default ``catalog/reasoning.json`` decides by the
    model's name.
    """

    cache_key: bool = True
    """Send the session id as ``prompt_cache_key`` with ``cache="auto"``, which routes the
    session's calls to one cache.
    """

    parallel_tools: bool = True
    """Whether the model may make several calls in one turn. ``False`` sends this wire's field that
    turns parallel calls off, with every request that has tools. The capability
    ``supports_parallel_tool_calls: false`` sets it."""
