"""Embedding and reranking models, over the same transport and with the same errors as providers.

Box: core; the server halves of the wires are in the box gateway.

- ``values``: requests, ``Embeddings`` and ``Ranking``
- ``vectors``: ``Vectors``: float32 numbers in one buffer
- ``contract``: ``Embedder`` and ``Reranker``: what a model implements, and what callers use
- ``check``: check the arguments of a call and build requests from them
- ``split``: split calls that are too large for one request
- ``stored``: embeddings and rankings as JSON
- ``wire``: the codecs (sans-IO), and the server side of each wire
- ``http``: a model behind a wire: encode, send, decode
- ``connect``: ``connect_embedder()`` and ``connect_reranker()``
"""

from ..provider.connect import add_retries
from .connect import (
    EMBED_SCHEMES,
    RetrievalSettings,
    bind_embedder,
    bind_reranker,
    connect_embedder,
    connect_reranker,
    open_embed_scheme,
)
from .contract import Embedder, Reranker, RetrievalModel, find_sale
from .http import HttpEmbedder, HttpReranker
from .split import join_embeddings
from .values import Embeddings, EmbedRequest, Ranked, Ranking, RerankRequest
from .vectors import Vectors
from .wire import EMBED_CODECS, RERANK_CODECS

__all__ = [
    "EMBED_CODECS", "EMBED_SCHEMES", "RERANK_CODECS", "EmbedRequest", "Embedder", "Embeddings",
    "HttpEmbedder", "HttpReranker", "Ranked", "Ranking", "RerankRequest", "Reranker",
    "RetrievalModel", "RetrievalSettings", "Vectors", "add_retries", "bind_embedder",
    "bind_reranker", "connect_embedder", "connect_reranker", "find_sale", "join_embeddings",
    "open_embed_scheme",
]  # fmt: skip
