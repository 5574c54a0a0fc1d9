"""The terms of the gemini wire for errors."""

from ... import errors as e
from ..server_errors import ErrorTerms, Terms

TERMS: ErrorTerms = {
    e.AuthenticationError: Terms("UNAUTHENTICATED"),
    e.InvalidModelError: Terms("NOT_FOUND"),
    e.ModelNotLoadedError: Terms("UNAVAILABLE", "the model is loading: "),
    e.BillingError: Terms("FAILED_PRECONDITION"),
    e.QuotaExceededError: Terms("RESOURCE_EXHAUSTED", "credits are depleted: "),
    e.RateLimitError: Terms("RESOURCE_EXHAUSTED"),
    e.OverloadedError: Terms("UNAVAILABLE", "overloaded: "),
    e.TimedOutError: Terms("DEADLINE_EXCEEDED"),
    e.ContextOverflowError: Terms(
        "INVALID_ARGUMENT", "the input token count exceeds the maximum number of tokens: "
    ),
    e.UnsupportedContentError: Terms("INVALID_ARGUMENT", "input modality is not supported: "),
    e.InvalidRequestError: Terms("INVALID_ARGUMENT"),
    e.ProviderError: Terms("INTERNAL"),
}
