"""The terms of the anthropic wire for errors."""

from ... import errors as e
from ..server_errors import ErrorTerms, Terms

_REFUSED = "invalid_request_error"
TERMS: ErrorTerms = {
    e.AuthenticationError: Terms("authentication_error"),
    e.InvalidModelError: Terms("not_found_error"),
    e.BillingError: Terms("billing_error", status=402),
    e.QuotaExceededError: Terms("billing_error", status=402),
    e.RateLimitError: Terms("rate_limit_error"),
    e.OverloadedError: Terms("overloaded_error", status=529),
    e.TimedOutError: Terms("timeout_error"),
    e.ContextOverflowError: Terms(_REFUSED, "prompt is too long: "),
    e.UnsupportedContentError: Terms(_REFUSED, "unsupported content block: "),
    e.InvalidRequestError: Terms(_REFUSED),
    e.ProviderError: Terms("api_error"),
}
