"""Provide the real databases of ``tests/gateway``."""

from ..databases import postgres_url as postgres_url
from ..databases import redis_url as redis_url
from ..databases import server as server
