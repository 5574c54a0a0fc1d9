"""Provide real Redis servers, started on demand: one for all tests, or one for a test."""

import inspect

from dragoman import errors

from ..databases import OwnRedis as OwnRedis
from ..databases import own_redis as own_redis
from ..databases import redis_url as redis_url

ERRORS = [
    kind
    for name in errors.__all__
    if inspect.isclass(kind := getattr(errors, name)) and issubclass(kind, errors.ProviderError)
]
