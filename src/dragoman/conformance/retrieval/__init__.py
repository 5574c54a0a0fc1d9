"""The conformance kit for embedders and rerankers: cases of wires, and the contract of a model."""

from .cases import CASES, RetrievalCase, find_retrieval_cases

__all__ = ["CASES", "RetrievalCase", "find_retrieval_cases"]
