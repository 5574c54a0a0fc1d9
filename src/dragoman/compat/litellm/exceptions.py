"""The exceptions of LiteLLM, with its names and hierarchy.

In LiteLLM they inherit from the exceptions of the openai package. Here, those that a call raises
do so too if the program has imported that package. The cause of each (``__cause__``) is
Dragoman's own error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from ... import errors as e


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
        self.response, self.body = more.get("response"), more.get("body")


_CLASSES: dict[type[e.ProviderError], type[OpenAIError]] = {}


def _derive(
    name: str, status: int, *ours: type[e.ProviderError], parent: type[OpenAIError] = OpenAIError
) -> type[OpenAIError]:
    """Return an exception class, which stands for some of Dragoman's error classes."""
    made = type(name, (parent,), {"status_code": status, "__module__": __name__})
    _CLASSES.update(dict.fromkeys(ours, made))
    return made


APIError = _derive("APIError", 500, e.ProviderError)
APIConnectionError = _derive("APIConnectionError", 500, e.NetworkError, e.StreamInterruptedError)
APIResponseValidationError = _derive("APIResponseValidationError", 500, e.InvalidResponseError)
AuthenticationError = _derive("AuthenticationError", 401, e.AuthenticationError)
PermissionDeniedError = _derive("PermissionDeniedError", 403)
NotFoundError = _derive("NotFoundError", 404, e.InvalidModelError)
Timeout = _derive("Timeout", 408, e.TimedOutError)
RateLimitError = _derive("RateLimitError", 429, e.RateLimitError)
InternalServerError = _derive("InternalServerError", 500, e.UnavailableError)
ServiceUnavailableError = _derive(
    "ServiceUnavailableError", 503, e.OverloadedError, e.ModelNotLoadedError
)
BadRequestError = _derive("BadRequestError", 400, e.InvalidRequestError, e.UnsupportedContentError)
_derive_bad = partial(_derive, parent=BadRequestError)
ContentPolicyViolationError = _derive_bad("ContentPolicyViolationError", 400)
ContextWindowExceededError = _derive_bad("ContextWindowExceededError", 400, e.ContextOverflowError)
PaymentRequiredError = _derive_bad("PaymentRequiredError", 402, e.BillingError)
UnsupportedParamsError = _derive_bad("UnsupportedParamsError", 400, e.UnsupportedFeatureError)
JSONSchemaValidationError = _derive(
    "JSONSchemaValidationError", 500, e.StructuredOutputError, parent=APIResponseValidationError
)


_NAMES = {"Timeout": "APITimeoutError", "ServiceUnavailableError": "APIStatusError"}


def _join_openai(kind: type[OpenAIError]) -> type[OpenAIError]:
    """Return a class that also inherits from the class of the openai package with its name."""
    openai = sys.modules["openai"]
    names = [_NAMES.get(each.__name__, each.__name__) for each in kind.__mro__]
    other = next(getattr(openai, name) for name in names if hasattr(openai, name))
    return type(kind.__name__, (kind, other), {"__module__": __name__})


@contextmanager
def converted_errors(provider: str, model: str) -> Iterator[None]:
    """Raise LiteLLM's exception in place of an error of Dragoman or of an invalid setting."""
    try:
        yield
    except e.ProviderError as error:
        kind = next(_CLASSES[each] for each in type(error).__mro__ if each in _CLASSES)
        if kind is AuthenticationError and error.status == 403:
            kind = PermissionDeniedError
        if kind is BadRequestError and "content" in (error.provider_code or ""):
            kind = ContentPolicyViolationError
        kind = _join_openai(kind) if "openai" in sys.modules else kind
        made = kind(str(error), provider, model, error.status)
        made.code = error.provider_code
        raise made from error
    except (TypeError, ValueError) as error:
        raise BadRequestError(e.scrub(str(error)), provider, model) from error
