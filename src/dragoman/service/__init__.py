"""A service of sessions over HTTP: agents that clients start, follow, answer and cancel.

Box: service.

::

    support = Agent("openai:gpt-6-sol", [refund], policy, system="You help customers.")
    app = create_app({}, keys=keys, sessions=Sessions({"support": support}, log))

The sessions live in the log: a waiting session uses neither memory nor a task, and what ran when
the process was killed goes on at its next start. Only what this package is given is run; a gateway
without it runs no tool. It needs the extra ``gateway``.
"""

from __future__ import annotations

from .agents import Agent
from .definitions import load_sessions
from .sessions import Sessions

__all__ = ["Agent", "Sessions", "load_sessions"]
