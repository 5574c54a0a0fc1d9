"""The exceptions of LiteLLM, with its names and hierarchy.

In LiteLLM they inherit from the exceptions of the openai package. Here, those that a call raises
do so too if the program has imported that package. The cause of each (``__cause__``) is
Dragoman's own error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ... import errors as ours
from .names import read_table

_OPENAI = {"Timeout": "APITimeoutError", "ServiceUnavailableError": "APIStatusError"}


class OpenAIError(Exception):
    """The base class of all exceptions of this module."""

    status_code: int = 500
    code: str | None = None

    def __init__(
        self,
        message: str = "",
        llm_provider: str | None = None,
        model: str | None = None,
        status_code: int | None = None,
        **more: Any,
    ) -> None:
        self.message = f"litellm.{type(self).__name__}: {message}"
        Exception.__init__(self, self.message)
        self.llm_provider = llm_provider
        self.model = model
        self.status_code = status_code or self.status_code
        self.response = more.get("response")
        self.body = more.get("body")


# A narrower exception of a status that an error of Dragoman shares with others.
_BY_STATUS: dict[tuple[str, int | None], str] = {
    ("AuthenticationError", 403): "PermissionDeniedError",
    ("BadRequestError", 404): "NotFoundError",
    ("BadRequestError", 422): "UnprocessableEntityError",
    ("InternalServerError", 503): "ServiceUnavailableError",
}
KINDS: dict[str, type[OpenAIError]] = {"": OpenAIError}
_CLASSES: dict[type[ours.ProviderError], str] = {}
for _name, (_status, _parent, _replaced) in read_table().errors.items():
    _facts = {"status_code": _status, "__module__": __name__}
    KINDS[_name] = globals()[_name] = type(_name, (KINDS[_parent],), _facts)
    _CLASSES |= {getattr(ours, each): _name for each in _replaced}


def _find_kind(name: str) -> type[OpenAIError]:
    """Return a class that also inherits from the openai package's class, if imported."""
    kind = KINDS[name]
    openai = sys.modules.get("openai")
    if openai is None:
        return kind
    names = [_OPENAI.get(each.__name__, each.__name__) for each in kind.__mro__]
    other = next(getattr(openai, each) for each in names if hasattr(openai, each))
    return type(name, (kind, other), {"__module__": __name__})


@contextmanager
def converted_errors(provider: str, model: str) -> Iterator[None]:
    """Raise LiteLLM's exception in place of an error of Dragoman or of an invalid setting."""
    try:
        yield
    except ours.ProviderError as error:
        name = next(_CLASSES[each] for each in type(error).__mro__ if each in _CLASSES)
        name = _BY_STATUS.get((name, error.status), name)
        if name == "BadRequestError" and "content" in (error.provider_code or ""):
            name = "ContentPolicyViolationError"
        made = _find_kind(name)(str(error), provider, model, error.status)
        made.code = error.provider_code
        raise made from error
    except (TypeError, ValueError) as error:
        raise KINDS["BadRequestError"](ours.scrub(str(error)), provider, model) from error
