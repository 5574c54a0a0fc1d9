"""Provide the real databases of ``tests/gateway``."""

from ..gateway.conftest import postgres_url as postgres_url
from ..gateway.conftest import redis_url as redis_url
from ..gateway.conftest import server as server
