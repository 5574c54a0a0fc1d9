"""The simulator: a model whose replies and failures are scripted and deterministic.

Box: kit.
"""

from ..validate.yaml import ConfigError
from .batches import BatchScript, SimBatches
from .provider import ScriptedProvider
from .retrieval import SimulatedEmbedder, SimulatedReranker
from .script import Answer, Call, Fault, RequestMatch, Said, Script, ScriptRule
from .server import SimServer, serve
from .yaml import read_script

__all__ = [
    "Answer", "BatchScript", "Call", "ConfigError", "Fault", "RequestMatch", "Said", "Script",
    "ScriptRule", "ScriptedProvider", "SimBatches", "SimServer", "SimulatedEmbedder",
    "SimulatedReranker", "read_script", "serve",
]  # fmt: skip
