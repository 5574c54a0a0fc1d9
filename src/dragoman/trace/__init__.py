"""The trace viewer: a log's sessions in a browser, with timeline, evidence, cost and hash chain.

Box: agent.

It is served on the loopback address only, under an unguessable path, and is read-only unless
decisions are enabled. ``export_html`` writes one session to a file.
"""

from .export import export_html
from .queries import Reader, SessionFilter
from .server import TraceServer, Viewer, add_headers, make_app

__all__ = [
    "Reader",
    "SessionFilter",
    "TraceServer",
    "Viewer",
    "add_headers",
    "export_html",
    "make_app",
]  # fmt: skip
