"""The simulator: a model that says what a script says, and fails as the script says, the same every time."""

from ..registry.config import ConfigError
from .provider import ScriptedProvider
from .reading import read_script
from .script import Answer, Call, Fault, Match, Rule, Said, Script
from .server import SimServer, serve

__all__ = [
    "Answer",
    "Call",
    "ConfigError",
    "Fault",
    "Match",
    "Rule",
    "Said",
    "Script",
    "ScriptedProvider",
    "SimServer",
    "read_script",
    "serve",
]
