"""The synchronous API: every call waits for its result.

::

    with dragoman.sync.connect("llama3", base_url="http://127.0.0.1:8080/v1") as model:
        print(model.complete("Name a river.").text)
        for event in model.stream("And another?"):
            ...

``SyncProvider(provider)`` gives any provider blocking calls, such as a ``ScriptedProvider`` in a
test. ``Session`` runs an agent.
"""

from __future__ import annotations

import importlib

from .blocking import (
    SyncEmbedder,
    SyncEventStream,
    SyncProvider,
    SyncReranker,
    close_soon,
    connect,
    connect_embedder,
    connect_reranker,
    gather,
    run,
)

TYPE_CHECKING = False

if TYPE_CHECKING:
    from .session.blocking import SessionStream as SessionStream
    from .session.blocking import SyncSession as Session

__all__ = [
    "Session", "SessionStream", "SyncEmbedder", "SyncEventStream", "SyncProvider", "SyncReranker",
    "close_soon", "connect", "connect_embedder", "connect_reranker", "gather", "run",
]  # fmt: skip

# Sessions are imported on first use: a program that only calls models does not need them.
_SESSIONS = {"Session": "SyncSession", "SessionStream": "SessionStream"}

if not TYPE_CHECKING:  # hidden from type checkers, which must report unknown names

    def __getattr__(name: str) -> object:
        """Import the classes of sessions on first use."""
        if name not in _SESSIONS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = importlib.import_module("dragoman.session.blocking")
        return globals().setdefault(name, getattr(module, _SESSIONS[name]))
