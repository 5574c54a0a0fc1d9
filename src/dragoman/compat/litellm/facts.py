"""What is known about models and their parameters, by LiteLLM's names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...errors import ProviderError, advise_import
from ...registry import load_vendor
from .calls import make_call, open_model, split
from .exceptions import KINDS, OpenAIError
from .names import find_name, read_table

_HELLO = [{"role": "user", "content": "Hi"}]
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
# The parameters of the openai package that a call may have, with a value of each.
_SAMPLES: dict[str, Any] = {
    "temperature": 0.5, "top_p": 0.5, "max_tokens": 9, "max_completion_tokens": 9, "stop": ["x"],
    "seed": 1, "frequency_penalty": 0.5, "presence_penalty": 0.5, "user": "u",
    "logit_bias": {"1": 1}, "logprobs": True, "top_logprobs": 1, "n": 2,
    "parallel_tool_calls": False, "reasoning_effort": "low", "service_tier": "auto",
    "response_format": {"type": "json_object"}, "tools": [_TOOL],
    "tool_choice": "auto",
}  # fmt: skip


class ModelCost(Mapping[str, dict[str, Any]]):
    """The facts of each model of the catalogue whose name needs no prefix, by its name."""

    def __init__(self, describe: Callable[[str], dict[str, Any]]) -> None:
        self._describe = describe

    def __getitem__(self, name: str) -> dict[str, Any]:
        try:
            return self._describe(name)
        except OpenAIError:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        table = read_table()
        found = [
            load_vendor(table.routes[each].vendor).listed_models() for each in table.unprefixed
        ]
        return iter(dict.fromkeys([name for names in found for name in names]))

    def __len__(self) -> int:
        return len([*iter(self)])


def get_llm_provider(
    model: str,
    custom_llm_provider: str | None = None,
    api_base: str | None = None,
    api_key: str | None = None,
) -> tuple[str, str, str | None, str | None]:
    """Return the model's name without its prefix, its provider, the key and the address."""
    found = find_name(model, custom_llm_provider)
    if found is None:
        known = ", ".join(sorted(read_table().routes))
        problem = f"no provider is known for {model!r}; write provider/model, with one of {known}"
        raise KINDS["BadRequestError"](problem, model=model)
    return found.model, found.provider, api_key, api_base or found.route.base_url


def validate_environment(model: str, api_key: str | None = None) -> dict[str, Any]:
    """Return whether the environment has the key of a model's provider, and what is missing."""
    found = find_name(model)
    variable = found.route.key_variable if found is not None else None
    is_missing = variable is not None and not (api_key or os.environ.get(variable))
    return {
        "keys_in_environment": not is_missing,
        "missing_keys": [variable] if is_missing else [],
    }


async def list_parameters(model: str, custom_llm_provider: str | None = None) -> list[str]:
    """Return the parameters that a call of a model may have, without being refused or dropped."""
    found = find_name(model, custom_llm_provider)
    if found is None:
        return []
    options, _ = split({"api_key": "unused", "drop_params": False})
    provider = await open_model(found, options)
    accepted = ["stream", "stream_options"]
    for name, value in _SAMPLES.items():
        body = {name: value, **({"tools": [_TOOL]} if name == "tool_choice" else {})}
        try:
            call = make_call(provider, _HELLO, body, drops=False)
        except (ProviderError, ValueError):
            continue
        if not call.losses:
            accepted.append(name)
    return accepted


def _find_encoding(model: str) -> Any:
    with advise_import("encode and decode need the package tiktoken; install it"):
        # lazy import: the package is optional, and only these two functions need it
        import tiktoken
    found = find_name(model)
    try:
        return tiktoken.encoding_for_model(model if found is None else found.model)
    except KeyError:
        return tiktoken.get_encoding("o200k_base")


def encode(model: str = "", text: str = "") -> list[int]:
    """Return the tokens of a text, by the package tiktoken, which knows the models of OpenAI."""
    tokens: list[int] = _find_encoding(model).encode(text, disallowed_special=())
    return tokens


def decode(model: str = "", tokens: list[int] | None = None) -> str:
    """Return the text of tokens that ``encode`` returned for the same model."""
    text: str = _find_encoding(model).decode(tokens or [])
    return text
