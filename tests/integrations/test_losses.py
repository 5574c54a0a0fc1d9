"""Test that bridges to other frameworks report dropped cache marks and document names as losses."""

import pytest

from dragoman import Document, Image, Provider, System, Text, Tool, User
from dragoman.integrations.bridge import from_langchain, from_pydantic_ai
from dragoman.integrations.langchain import ChatDragoman
from dragoman.integrations.pydantic_ai import DragomanModel
from dragoman.sim import ScriptedProvider

MESSAGES = [
    System("Be brief.", cache=True),
    User([Text("Read this.", cache=True), Document(b"%PDF-1.4", name="report.pdf"),
          Image(b"\x89PNG\r\n")]),
]  # fmt: skip


@pytest.mark.parametrize(
    "provider",
    [
        from_langchain(ChatDragoman(provider=ScriptedProvider("Hello."))),
        from_pydantic_ai(DragomanModel(ScriptedProvider("Hello."))),
    ],
    ids=["langchain", "pydantic-ai"],
)
async def test_bridge_reports_dropped_cache_marks_and_document_names(provider: Provider) -> None:
    deferred = Tool("f", "d", deferred=True)
    reply = await provider.complete(MESSAGES, [deferred], cache="auto")
    found = {(warning.code, warning.path) for warning in reply.warnings}
    assert found >= {
        ("deferral_dropped", "tools"),
        ("cache_dropped", "config.cache"),
        ("cache_dropped", "messages[0].cache"),
        ("cache_dropped", "messages[1].content[0].cache"),
        ("name_dropped", "messages[1].content[1].name"),
    }
    plain = await provider.complete("Hello?")
    assert plain.warnings == ()
