"""The AI SDK's chat class behind ``useChat`` reads ``ui_message_stream_response`` from a real
socket.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.responses import Response

from dragoman import Provider, RateLimitError, Tool, UnavailableError
from dragoman.integrations.starlette import ui_message_stream_response
from dragoman.messages import Opaque, RedactedThinking
from dragoman.sim import Answer, Call, ScriptedProvider
from tests.gateway.serving import serving
from tests.listed import Listed, broken, speak
from tests.programs import require

from .running import INSTALLED, find_program, in_full_run, run_program

pytestmark = [pytest.mark.exhaustive, in_full_run]

PROGRAM = Path(__file__).parent / "ui_messages.mjs"
LOOK = Tool(
    "look",
    "Describe a place.",
    parameters={"type": "object", "properties": {"place": {"type": "string"}}},
)


async def chat(model: Provider, where: Path) -> dict[str, Any]:
    """Send one message; return the state of the chat after the reply."""
    find_program("node", "node_modules", "ai")
    node = require("node")
    app = FastAPI()

    @app.post("/api/chat")
    async def answer(body: dict[str, Any]) -> Response:
        return await ui_message_stream_response(
            model.stream(body["messages"][0]["parts"][0]["text"], tools=[LOOK])
        )

    async with serving(app) as url:
        command = [str(node), str(PROGRAM), str(INSTALLED / "node"), f"{url}/api/chat"]
        status, printed = await run_program(command, where, {})
    assert status == 0, printed
    found: dict[str, Any] = json.loads(printed.strip().splitlines()[-1])
    return found


async def test_reply_becomes_a_ui_message_with_all_its_parts(tmp_path: Path) -> None:
    call = Call("look", {"place": "far away"}, id="c1")
    found = await chat(
        ScriptedProvider(Answer(thinking="Let me see.", text="I look.", tool_calls=[call])),
        tmp_path,
    )
    assert found["status"] == "ready"
    assert found["finishReason"] == "tool-calls"
    assert found["isError"] is False
    parts = found["last"]["parts"]
    assert [part["type"] for part in parts] == ["step-start", "reasoning", "text", "tool-look"]
    assert [part.get("text") for part in parts[1:3]] == ["Let me see.", "I look."]
    assert [part["state"] for part in parts[1:]] == ["done", "done", "input-available"]
    assert parts[3]["toolCallId"] == "c1"
    assert parts[3]["input"] == {"place": "far away"}
    metadata = found["last"]["metadata"]
    assert metadata["model"] == "sim"
    assert metadata["finishReason"] == "tool_calls"
    assert metadata["usage"]["output_tokens"] > 0


async def test_opaque_blocks_of_a_provider_become_data_parts(tmp_path: Path) -> None:
    result = {"type": "web_search_tool_result", "content": []}
    blocks = (RedactedThinking("c2VjcmV0"), Opaque(result))
    words = [lambda out, block=block: out.whole(block) for block in blocks]
    found = await chat(Listed(speak(*words, lambda out: out.text("Found."))), tmp_path)
    assert found["status"] == "ready"
    assert found["isError"] is False
    kept = [part for part in found["last"]["parts"] if part["type"] == "data-dragoman-block"]
    assert [(part["data"]["index"], part["data"]["block"]["data"]) for part in kept] == [
        (0, "c2VjcmV0"),
        (1, result),
    ]


async def test_invalid_tool_call_becomes_an_error_in_the_chat(tmp_path: Path) -> None:
    found = await chat(ScriptedProvider(Answer(tool_calls=[Call("unknown", {})])), tmp_path)
    assert found["status"] == "error"
    assert "no tool of this name" in found["error"]
    assert found["last"]["parts"][-1]["state"] == "output-error"


async def test_error_before_the_reply_is_shown_as_an_error_in_the_chat(tmp_path: Path) -> None:
    found = await chat(Listed(RateLimitError("slow down", status=429)), tmp_path)
    assert found["status"] == "error"
    assert found["count"] == 1
    assert json.loads(found["error"])["error"]["message"] == "slow down"


async def test_error_during_the_reply_is_shown_as_an_error_in_the_chat(tmp_path: Path) -> None:
    found = await chat(Listed(broken("Half", UnavailableError("went away"))), tmp_path)
    assert found["status"] == "error"
    assert found["error"] == "went away"
    assert found["isError"] is True
    assert [part.get("text") for part in found["last"]["parts"]] == [None, "Half"]
