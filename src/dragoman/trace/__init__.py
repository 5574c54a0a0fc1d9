"""A log in a browser: its sessions, and of each the timeline, what follows from what, the cost and the chain.

Served on this machine alone, under a path that cannot be guessed. Only reading, unless decisions are allowed.
``export_html`` gives one session as a file.
"""

from .export import export_html
from .queries import Reader, Wanted
from .server import TraceServer, make_app

__all__ = ["Reader", "TraceServer", "Wanted", "export_html", "make_app"]
