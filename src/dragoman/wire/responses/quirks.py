"""How servers and models that speak this wire differ, as data."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ...reasoning import ReasoningStyle
from ..ids import IdRule


class Quirks(Struct, frozen=True, forbid_unknown_fields=True):
    """How a server or model that speaks this wire differs from the rest. The defaults suit hosted OpenAI.

    Each field names who needs it and, in brackets, a recorded exchange that shows it.
    """

    result_media: Literal["inside", "omit"] = "inside"
    """Where images and documents of a tool's result go: into the result, or nowhere, with a text in their place.
    ``omit`` for models known not to see images."""

    structured: Literal["native", "prompt"] = "native"
    """Whether ``text.format`` with a JSON Schema works. llama.cpp ignores it and says nothing, so it needs ``prompt``
    [llamaserver_qwen25coder_fence__resp_json_schema]; one that answers 400 is learned."""

    strict_schemas: bool = True
    """Mark a response schema as strict where it meets the rules of strict decoding. A 400 about a schema turns it off
    for that schema."""

    encrypted_reasoning: bool = True
    """Ask for reasoning in a form that can be sent back (``include: reasoning.encrypted_content``): without it a
    stateless conversation loses its reasoning. OpenAI's models that do not reason answer 400 to it;
    then this is learned."""

    send_reasoning: Literal["encrypted", "all"] = "encrypted"
    """Which reasoning goes back to its issuer. Hosted OpenAI takes only the encrypted kind when nothing is stored;
    servers of open models (DeepSeek, LM Studio, bedrock-mantle) show theirs in clear and take it back as it is:
    ``all``."""

    reasoning_summary: Literal["auto", "concise", "detailed"] | None = None
    """Ask for a summary of the reasoning, which hosted OpenAI shows only then. Models that do not reason answer 400."""

    strict_tools: bool = True
    """Mark tools whose schema meets strict mode's rules as strict; all others are marked as not strict, because OpenAI
    otherwise rewrites their schema and makes optional arguments required. A 400 about a tool's schema turns it off
   ."""

    assistant_text: Literal["parts", "plain"] = "parts"
    """How the model's own text is sent back: as a part of ``output_text``, or as plain text. vLLM holds parts against
    the type of an output item, which wants an id and a status, and answers 400 without them."""

    silent_cut: bool = False
    """A reply of as many tokens as ``max_tokens`` allows was cut off, although the server calls it completed
    (llama.cpp) [llamaserver_random__resp_basic]."""

    id_rule: IdRule | None = IdRule(64, also="_-.:|/+= ")
    """Which tool-call ids are taken. OpenAI: at most 64 characters, also of the ids it made itself."""

    readiness: Literal["auto", "models", "health", "state", "resident"] = "auto"
    """Which question tells that the model is served. ``health``: llama.cpp, vLLM, SGLang; ``state``: LM Studio's own
    model list; ``resident``: Ollama's list of models in memory; ``models``: hosted; ``auto``: models, then health."""

    any_model: bool = False
    """The server has one model and serves it under every name (llama.cpp)."""

    reasoning: ReasoningStyle | None = None
    """How the endpoint takes ``config.reasoning``; by default ``catalog/reasoning.json`` knows it by the model's
    name."""

    cache_key: bool = True
    """``cache="auto"`` sends the id of the session as ``prompt_cache_key``, which routes its calls to one cache."""

    parallel_tools: bool = True
    """Whether the model may make several calls in one turn. ``False`` sends the switch of this wire with every request
    that has tools; ``supports_parallel_tool_calls: false`` sets it."""
