"""Search deferred tools by the terms in their names and descriptions."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from ..messages import Tool
from .recorded import RecordedTool
from .runtime import SEARCH_TOOLS, ExecutableTool, Observation, Toolbox

_MOST = 5  # how many tools one search returns
_LONGEST = 300  # characters of a description in a result
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+|[^\W\d_a-zA-Z]+")
_ENDINGS = re.compile(r"(?<=\w\w\w)(?:ing|ed|es|s|e)$")
_ABOUT = (
    "Find tools among {} that are not listed here. The tools that match best can be called from"
    " the next turn on: then call the one that fits."
)
# Without this note, small models repeat the list in place of a call (Qwen2.5-Coder-1.5B).
_CALL = "These tools are loaded. Call the one that fits now."
_QUERY = {"type": "string", "description": "What the tool is to do, in a few words."}


class ToolIndex:
    """Rank tools by BM25 over the terms in their names, descriptions and parameters."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self.tools = tuple(tools)
        # A term in the name counts twice.
        self._counts = [
            Counter(
                _words(f"{tool.name} {tool.name} {tool.description} {' '.join(_fields(tool))}")
            )
            for tool in self.tools
        ]
        self._mean = sum(map(Counter.total, self._counts)) / max(len(self.tools), 1)
        self._holders = Counter(word for counts in self._counts for word in counts)

    def search(self, query: str, most: int = _MOST) -> list[Tool]:
        """Return the tools that match the query best, the best first."""
        words = set(_words(query))
        scores = [self._score(words, counts) for counts in self._counts]
        ranked = sorted(range(len(scores)), key=lambda at: -scores[at])
        return [self.tools[at] for at in ranked[:most] if scores[at] > 0]

    def _score(self, words: set[str], counts: Counter[str]) -> float:
        score = 0.0
        relative = counts.total() / (self._mean or 1)
        for word in words & counts.keys():
            holders = self._holders[word]
            rarity = math.log(1 + (len(self.tools) - holders + 0.5) / (holders + 0.5))
            score += rarity * counts[word] * 2.2 / (counts[word] + 1.2 * (0.25 + 0.75 * relative))
        return score


class SearchTools(ExecutableTool):
    """The session's own tool ``search_tools``, for models whose provider has no tool search.

    Its result is JSON, from which ``read_found`` reads the names of the tools.
    """

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._index = ToolIndex(tools)
        schema = {"type": "object", "properties": {"query": _QUERY}, "required": ["query"]}
        about = _ABOUT.format(len(self._index.tools))
        super().__init__(Tool(SEARCH_TOOLS, about, parameters=schema), side_effect="none")

    def follow(self, tools: Toolbox) -> None:
        """Search the deferred tools that there are now."""
        self._index = ToolIndex(_find_deferred(tools))
        about = _ABOUT.format(len(self._index.tools))
        self.description = replace(self.description, description=about)

    async def execute(self, arguments: Mapping[str, Any]) -> Observation:
        found = self._index.search(arguments["query"])
        listed = [
            {"name": each.name, "description": each.description[:_LONGEST]} for each in found
        ]
        note = _CALL if listed else "No tool matches. Try other words."
        return Observation(msgspec.json.encode({"tools": listed, "note": note}).decode())


def add_search(tools: Toolbox) -> Toolbox:
    """Return the tools with ``search_tools`` if some are deferred, otherwise unchanged.

    A recorded ``search_tools`` is kept, so that a run can be repeated.
    """
    deferred = _find_deferred(tools)
    own = [tool for tool in tools if tool.name == SEARCH_TOOLS]
    if not deferred or any(isinstance(tool, RecordedTool) for tool in own):
        return tools
    if own:
        raise ValueError(f"tools: {SEARCH_TOOLS!r} is the session's own; rename yours")
    return Toolbox([*tools, SearchTools(deferred)])


def _find_deferred(tools: Toolbox) -> list[Tool]:
    return [tool.description for tool in tools if tool.description.deferred]


def read_found(content: object) -> list[str]:
    """Return the names of the tools in a result of ``search_tools``."""
    try:
        result = msgspec.json.decode(str(content), type=dict[str, Any])
        return [str(each["name"]) for each in result.get("tools", ())]
    except (msgspec.MsgspecError, TypeError, KeyError):
        return []  # not a result of a search, but the reason why it did not run


def _fields(tool: Tool) -> list[str]:
    properties = tool.parameters.get("properties")
    return [str(name) for name in properties] if isinstance(properties, dict) else []


def _words(text: str) -> list[str]:
    return [_ENDINGS.sub("", word.lower()) for word in _WORD.findall(text)]
