"""The terms of the openai wire for errors."""

from ... import errors as e
from ..server_errors import ErrorTerms, Terms

_REFUSED = "invalid_request_error"
TERMS: ErrorTerms = {
    e.AuthenticationError: Terms("authentication_error", code="invalid_api_key"),
    e.InvalidModelError: Terms(_REFUSED, code="model_not_found"),
    e.ModelNotLoadedError: Terms("server_error", code="model_not_loaded"),
    e.BillingError: Terms("insufficient_quota", code="billing_error"),
    e.QuotaExceededError: Terms("insufficient_quota", code="insufficient_quota"),
    e.RateLimitError: Terms("rate_limit_error", code="rate_limit_exceeded"),
    e.OverloadedError: Terms("server_error", code="overloaded"),
    # Proxies and agents recognise this error by the vendor's error message, not by the code.
    e.ContextOverflowError: Terms(
        _REFUSED,
        "This model's maximum context length is exceeded: ",
        "context_length_exceeded",
    ),
    e.UnsupportedFeatureError: Terms(_REFUSED, code="unsupported_parameter"),
    e.UnsupportedContentError: Terms(
        _REFUSED, "unsupported content block: ", "unsupported_content"
    ),
    e.InvalidRequestError: Terms(_REFUSED),
    e.ProviderError: Terms("server_error"),
}
