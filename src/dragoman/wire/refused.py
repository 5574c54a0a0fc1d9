"""Find the optional setting that an error refuses, in the error texts of all servers.

OpenAI names the field in ``param``. Other servers only write it into a message, in different
sentences. What is found is a name; whether it is a setting that the request has sent, and not a
part of the conversation, is decided by the path of the setting in the body.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from ..errors import ProviderError
from ..messages import EFFORTS
from .reasoning import NOT_REASONING, ReasoningStyle, is_off

# The codes of an error whose ``param`` is a field that the model does not accept.
_CODES = frozenset(
    {
        "invalid_parameter",
        "unknown_parameter",
        "unrecognized_parameter",
        "unsupported_parameter",
        "unsupported_value",
    }
)
_NAME = r"['\"`]?(?P<name>[A-Za-z][\w.]*)\b['\"`]?"
_SENTENCES = [
    re.compile(sentence, re.IGNORECASE)
    for sentence in (
        # OpenAI: "Unsupported value: 'temperature' does not support 0.2 with this model",
        # "Unrecognized request argument supplied: seed"; Cohere: "unknown field: parameter 'k'"
        r"\b(?:unsupported|unknown|unrecogni[sz]ed|unexpected|invalid) (?:request )?"
        rf"(?:parameter|argument|field|key|value)s?(?: supplied)?: (?:parameter )?{_NAME}",
        # xAI: "Argument not supported: stop", "Argument not supported on this model: stop"
        rf"\b(?:argument|parameter|field)s? not supported(?: (?:on|by|with) this model)?: {_NAME}",
        # Moonshot: "invalid temperature: only 1 is allowed for this model"
        rf"\binvalid {_NAME}: only [^.]{{1,40}} (?:is|are) allowed\b",
        # xAI: "Model grok-4.20 does not support parameter reasoningEffort"; LiteLLM:
        # "does not support parameters: ['seed']"; Bedrock: "doesn't support the stopSequences
        # field"
        rf"\bdoes(?: not|n'?t) support (?:the )?parameters?(?:\(s\))?:? ?[\[{{]?{_NAME}",
        rf"\bdoes(?: not|n'?t) support (?:the )?{_NAME} (?:field|parameter|argument|setting)\b",
        # Groq: "property 'seed' is unsupported"; Anthropic: "`temperature` is deprecated for this
        # model"; OpenAI: "prompt_cache_retention is not supported on this model"; Mistral:
        # "reasoning_effort is not enabled for this model"
        rf"(?:^|[\s:]){_NAME} (?:is|are) "
        r"(?:not supported|not enabled|unsupported|deprecated|not permitted)\b"
        r"(?! values?)",
        # Bedrock: "extraneous key [top_k] is not permitted"
        r"\bextraneous key \[(?P<name>[\w.]+)\]",
        # Anthropic: "top_k: Extra inputs are not permitted"; NVIDIA: "body -> seed\n Extra inputs"
        r"(?:^|[\s'\">])(?P<name>[A-Za-z][\w.]*):?\s+"
        r"extra (?:inputs?|fields?) (?:are )?not permitted",
        # Mistral: "{'type': 'extra_forbidden', 'loc': ['body', 'seed'], ...}", also in quotes
        r"extra_forbidden\W+loc\W+body\W+(?P<name>\w+)\W{1,8}msg\b",
        # Google: "Unknown name \"seed\" at 'generation_config': Cannot find field."
        r"unknown name \\?\"(?P<name>\w+)\\?\"(?=:| at 'generation_?config')",
    )
]
# Sentences that refuse a value, not the field, so they count for reasoning alone. Z.ai:
# "reasoning_effort must be one of low, high, max"; Ollama: "invalid think value: "xhigh" (must be
# "high", "medium", ...)"; Anthropic: "output_config.effort: Input should be 'low' or 'high'".
_OF_VALUES = re.compile(
    r"(?:^|[\s,])(?P<name>[A-Za-z][\w.]{1,60})(?: must be one of\b|: input should be '| value: \")",
    re.IGNORECASE,
)
_LISTED = re.compile(
    r"(?:supported values are|must be(?: one of)?|input should be):? (?P<values>[^.]{1,200})",
    re.IGNORECASE,
)
# OpenRouter, and Gemini: "Budget 0 is invalid. This model only works in thinking mode."
_MANDATORY = re.compile(r"reasoning is mandatory|only works in thinking mode", re.IGNORECASE)
# Gemini: "Thinking level MINIMAL is not supported for this model."
_LEVEL = re.compile(r"thinking level (?P<word>\w{1,20}) is not supported", re.IGNORECASE)
# Ollama: ""qwen2.5" does not support thinking"
_NO_THINKING = re.compile(r"does not support (?:thinking|reasoning)\b", re.IGNORECASE)
_NO_VALUE = re.compile(r"unsupported_value|unsupported value", re.IGNORECASE)


def find_names(error: ProviderError) -> list[str]:
    """Return the names of fields that a server does not accept, as its error has them."""
    found = [error.param] if error.param and error.provider_code in _CODES else []
    message = error.provider_message or ""
    found += [match["name"] for sentence in _SENTENCES for match in sentence.finditer(message)]
    return found


def find_settings(error: ProviderError, places: Mapping[str, str]) -> list[str]:
    """Return the settings that an error refuses, given the path in a body of each setting."""
    names = [_normalise(name) for name in find_names(error)]
    return [setting for setting, path in places.items() if _is_among(path.split("."), names)]


def change_style(
    error: ProviderError, style: ReasoningStyle, amount: str | int
) -> ReasoningStyle | None:
    """Return the style of reasoning that a model accepts by its error, if it is about reasoning.

    OpenAI lists the efforts of a model that lacks one, OpenRouter answers "Reasoning is mandatory
    for this endpoint and cannot be disabled", and models without reasoning refuse the field.
    """
    message = error.provider_message or ""
    if _MANDATORY.search(message):
        return replace(style, off=None) if is_off(amount) and style.off is not None else None
    if (level := _LEVEL.search(message)) is not None:
        kept = tuple([each for each in style.efforts if each != level["word"].lower()])
        return replace(style, efforts=kept) if kept and kept != style.efforts else None
    if not style.reasons:
        return None
    if _NO_THINKING.search(message):
        return NOT_REASONING
    if not _names_reasoning(error, style):
        return None
    listed = _LISTED.search(message)
    if listed is None:
        is_value = _NO_VALUE.search(f"{error.provider_code} {message}")
        return None if is_value else NOT_REASONING
    return _keep_listed(style, listed["values"])


def _names_reasoning(error: ProviderError, style: ReasoningStyle) -> bool:
    """Return whether an error names a field of reasoning, or a value of it."""
    values = _OF_VALUES.finditer(error.provider_message or "")
    found = [*find_names(error), *[each["name"] for each in values]]
    names = [_normalise(name) for name in found]
    return any(
        _is_among(path.split("."), names) or _normalise(path.split(".")[0]) in names
        for path in _paths_of(style)
    )


def _keep_listed(style: ReasoningStyle, values: str) -> ReasoningStyle | None:
    """Return a style with the efforts that an error lists; ``None`` if it lists nothing new."""
    words = set(re.findall(r"\w+", values.lower()))
    efforts = tuple([effort for effort in EFFORTS if effort in words and not is_off(effort)])
    if style.effort is None or not efforts:
        return None
    off = {style.effort: "none"} if "none" in words else None
    changed = replace(style, efforts=efforts, off=off)
    return None if changed == style else changed


def _paths_of(style: ReasoningStyle) -> Iterator[str]:
    yield from [path for path in (style.effort, style.budget) if path is not None]
    for fields in (style.with_effort, style.with_budget, style.off or {}):
        yield from fields


def _is_among(fields: list[str], names: Iterable[str]) -> bool:
    """Return whether one of the normalised names is a path, its last field, or both in one word.

    The name of xAI for ``reasoning.effort`` is ``reasoningEffort``.
    """
    spelled = {_normalise(".".join(fields)), _normalise(fields[-1]), _normalise("".join(fields))}
    return not spelled.isdisjoint(names)


def _normalise(name: str) -> str:
    """Return a name in one spelling: snake case and camel case have the same."""
    return name.removeprefix("body.").replace("_", "").lower()
