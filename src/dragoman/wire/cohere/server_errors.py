"""The terms of the cohere wire for errors; it has no error codes, so clients recognise
an error by its message.
"""

from ... import errors as e
from ..server_errors import ErrorTerms, Terms

TERMS: ErrorTerms = {
    e.InvalidModelError: Terms(opening="model not found: "),
    e.BillingError: Terms(opening="billing: "),
    e.QuotaExceededError: Terms(opening="billing: "),
    e.OverloadedError: Terms(opening="overloaded: "),
    e.ContextOverflowError: Terms(opening="too many tokens: "),
    e.UnsupportedFeatureError: Terms(opening="not supported with this model: "),
    e.UnsupportedContentError: Terms(opening="document is not supported: "),
    e.ProviderError: Terms(),
}
