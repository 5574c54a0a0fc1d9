"""Provide real databases that gateways share: PostgreSQL with an empty schema per test, and Redis."""

from ..databases import OwnDatabase as OwnDatabase
from ..databases import OwnRedis as OwnRedis
from ..databases import own_postgres as own_postgres
from ..databases import own_redis as own_redis
from ..databases import postgres_url as postgres_url
from ..databases import redis_url as redis_url
from ..databases import server as server
