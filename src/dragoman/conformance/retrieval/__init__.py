"""The conformance kit for embedders and rerankers: cases of wires, and checks of live servers."""

from .cases import CASES, RetrievalCase, find_retrieval_cases
from .live import check_retrieval_server

__all__ = ["CASES", "RetrievalCase", "check_retrieval_server", "find_retrieval_cases"]
