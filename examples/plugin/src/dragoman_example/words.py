"""The tools of the plugin: functions that a model may call in a session."""

from dragoman.tools import tool


@tool(side_effect="read")
def count_words(text: str) -> int:
    """Count the words in a text."""
    return len(text.split())


TOOLS = [count_words]
