"""The conformance kit for embedders and rerankers: test wires, models and live servers.

Box: kit.
"""

from .cases import CASES, RetrievalCase, find_retrieval_cases
from .contract import RetrievalKit, RetrievalModelCase, find_cosine, retrieval_suite
from .live import check_retrieval_server

__all__ = [
    "CASES", "RetrievalCase", "RetrievalKit", "RetrievalModelCase", "check_retrieval_server",
    "find_cosine", "find_retrieval_cases", "retrieval_suite",
]  # fmt: skip
