"""The terms of the bedrock wire for errors."""

from ... import errors as e
from ..server_errors import ErrorTerms, Terms

TERMS: ErrorTerms = {
    e.AuthenticationError: Terms("AccessDeniedException"),
    e.BillingError: Terms("AccessDeniedException"),
    e.InvalidModelError: Terms("ResourceNotFoundException"),
    e.ModelNotLoadedError: Terms("ModelNotReadyException"),
    e.QuotaExceededError: Terms("ServiceQuotaExceededException"),
    e.RateLimitError: Terms("ThrottlingException"),
    e.TimedOutError: Terms("ModelTimeoutException"),
    e.OverloadedError: Terms("ServiceUnavailableException", "overloaded: "),
    e.ContextOverflowError: Terms("ValidationException", "Input is too long: "),
    e.UnsupportedContentError: Terms(
        "ValidationException", "This model doesn't support the content block: "
    ),
    e.UnsupportedFeatureError: Terms("ValidationException", "This model doesn't support it: "),
    e.InvalidRequestError: Terms("ValidationException"),
    e.ProviderError: Terms("InternalServerException"),
}
