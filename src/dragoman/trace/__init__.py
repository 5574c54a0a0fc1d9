"""A log in a browser: its sessions, and of each the timeline, what follows from what, the cost and the chain.

Served on this machine alone, under a path that nobody can guess; only reading.
"""

from .queries import Reader
from .server import TraceServer, make_app

__all__ = ["Reader", "TraceServer", "make_app"]
