"""The terms of the ollama wire for errors; it has no error codes, so clients recognise
an error by its message.
"""

from ... import errors as e
from ..server_errors import ErrorTerms, Terms

TERMS: ErrorTerms = {
    e.InvalidModelError: Terms(opening="model not found: "),
    e.ModelNotLoadedError: Terms(opening="loading model: "),
    e.BillingError: Terms(opening="payment required: "),
    e.QuotaExceededError: Terms(opening="exceeded your current quota: "),
    e.OverloadedError: Terms(opening="overloaded: "),
    e.ContextOverflowError: Terms(opening="the prompt is too long: "),
    e.UnsupportedFeatureError: Terms(opening="unsupported_parameter: "),
    e.UnsupportedContentError: Terms(opening="unsupported content block: "),
    e.ProviderError: Terms(),
}
