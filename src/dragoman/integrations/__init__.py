"""Adapters for other frameworks. Each module needs its framework, which an extra installs.

Box: extras.

- ``dragoman.integrations.langchain``: ``ChatDragoman`` and ``DragomanEmbeddings``, LangChain
  models
- ``dragoman.integrations.pydantic_ai``: ``DragomanModel``, a Pydantic AI model
- ``dragoman.integrations.openai_agents``: ``DragomanModel``, a model of the OpenAI Agents SDK
- ``dragoman.integrations.dspy``: ``DragomanLM``, a language model of DSPy
- ``dragoman.integrations.llm``: a plugin for the ``llm`` command, found by its entry point
- ``dragoman.integrations.starlette``: replies as responses of Starlette and FastAPI, also for
  ``useChat``
- ``dragoman.integrations.notebook``: ``show``, which displays a reply in a notebook while it
  arrives
- ``dragoman.integrations.bridge``: the other direction: models of frameworks and streams of SDKs
  as providers
"""

from __future__ import annotations

from .losses import DragomanLossWarning

__all__ = ["DragomanLossWarning"]
