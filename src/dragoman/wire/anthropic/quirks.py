"""Quirks: settings for the differences between servers and models of the anthropic wire."""

from __future__ import annotations

from typing import Literal

from ..ids import IdRule, NameRule
from ..quirks import ResultQuirks


class TurnQuirks(ResultQuirks, frozen=True):
    """Quirks of the models of this wire, wherever they are served."""

    needs_thinking: bool = False
    """Whether the thinking of an open turn must be complete (Claude up to 4.6). While the model
    calls tools, it rejects a request with ``thinking: enabled`` in which the turn does not begin
    with its thinking, and a request without it in which the turn has thinking. With ``True``, a
    turn whose thinking cannot be sent back is finished without reasoning, which is reported. The
    next turn reasons again.
    """

    binds_thinking: bool = False
    """Whether thinking is valid only after the same system prompt, tools and messages (Claude 5.5
    and Fable 5.1). With ``True``, a request that sends thinking back asks the server to drop the
    thinking whose prefix has changed, instead of rejecting the request.
    """

    prefill: bool = True
    """Whether the model continues an assistant message at the end of the conversation. Claude 4.6
    and later reject it. With ``False``, a message of the user follows and asks to continue.
    """


class Quirks(TurnQuirks, frozen=True):
    """How a server or model of the anthropic wire differs from the others."""

    name_rule: NameRule | None = NameRule(128)
    """Which tool names the server accepts: ``^[a-zA-Z0-9_-]{1,128}$``, as its error says.
    """

    structured: Literal["native", "tool", "prompt"] = "native"
    """How a ``response_schema`` is requested. ``native``: in the field ``output_config.format``.
    Models before Claude 4.5 and some resellers answer 400 to this field; then ``tool`` is used. A
    schema that the field cannot express (a recursive schema, or an object with any keys) uses
    ``tool`` from the start. ``tool``: by a forced tool, whose input is the answer. If the caller
    has tools or the model thinks, a tool cannot be forced, so ``prompt`` is used. ``prompt``: by
    an instruction at the end of the system prompt.
    """

    unsigned_thinking: bool = False
    """Whether thinking without a signature is sent back, with an empty one. Anthropic takes back
    only what it signed. Hosts of other models behind this API accept an empty signature; pi 1.5.2
    (2026-11-10) lists Vercel and Fireworks.
    """

    reasoning_required: bool = False
    """Whether every turn of the model must have thinking while the model reasons. A turn without
    thinking, such as that of another model, begins with a blank thought. DeepSeek answers 400 "The
    `content[].thinking` in the thinking mode must be passed back to the API"
    (leookun/cursor-byok#276), and Kimi "reasoning_content is missing in assistant tool call
    message" (NousResearch/hermes-agent#14018; both seen 2026-11-19). Such an error sets both
    quirks.
    """

    max_tokens: int | None = None
    """The token limit to send if neither the call nor the catalogue has one; the wire requires it.
    """

    cache: Literal["off", "system+tools", "auto"] = "off"
    """The default cache mode, for calls that do not set ``cache``. ``auto`` has the same effect as
    ``cache="auto"``. ``system+tools`` puts breakpoints on the last tool and the system prompt,
    which uses two of the four breakpoints. Cache writes are billed, so caching is off by default.
    """

    id_rule: IdRule | None = IdRule(64, also="_-")
    """Which tool-call ids the server accepts: ``^[a-zA-Z0-9_-]{1,64}$``. Compatible servers accept
    any id.
    """

    tool_search: bool = True
    """Whether the server searches deferred tools (Claude 4.5 and later).
    A 400 about the search turns it off; then every tool is sent.
    """

    compaction: bool = True
    """Whether the server compacts a conversation that is too long (Claude 4.6 and later). A 400
    about ``context_management`` turns it off.
    """

    parallel_tools: bool = True
    """Whether the model may make several calls in one turn. With ``False``, every request with
    tools also has the field that turns parallel calls off. The capability
    ``supports_parallel_tool_calls: false`` sets this quirk to ``False``.
    """

    refused_betas: tuple[str, ...] = ()
    """The betas that the server refuses, which are not sent. Google Cloud and Bedrock answer 400
    to a beta that they do not know (anthropics/claude-agent-sdk-typescript#307;
    anthropics/claude-code#49370; seen 2026-11-18); then the betas that the error names are added.
    """

    key_header: str | None = None
    """The header for the API key, instead of ``x-api-key``. With ``authorization`` the key is a
    bearer token, which Volcengine takes.
    """

    raw_predict: bool = False
    """Whether Google Cloud serves the model. Then the URL contains the model's name
    (``/models/NAME:rawPredict``), the body contains the API version, and there is no model list.
    ``base_url`` ends with ``/publishers/anthropic``.
    """
