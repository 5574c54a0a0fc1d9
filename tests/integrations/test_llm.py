"""Test the ``llm`` command with Dragoman's models, over a real socket to a scripted server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llm.cli
import llm.plugins
import pytest
from click.testing import CliRunner

import dragoman.integrations.llm as plugin
from dragoman.integrations.llm import (
    AsyncDragomanModel,
    DragomanEmbeddingModel,
    DragomanModel,
    find_names,
)
from dragoman.messages import Document, Image, ToolResult
from dragoman.provider import connect
from dragoman.sim import Answer, Call, ScriptedProvider, SimServer, SimulatedEmbedder

pytestmark = pytest.mark.filterwarnings("ignore:.*unclosed database.*:ResourceWarning")


@pytest.fixture
def config(server: SimServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "models.yaml"
    address = server.base_urls["openai"]
    adapters = f"adapters: {{box: {{type: openai-compatible, base_url: '{address}'}}}}\n"
    path.write_text(adapters + "models: {'box:sim-1': {aliases: [quick]}}\n")
    monkeypatch.setenv("DRAGOMAN_CONFIG", str(path))
    return path


@pytest.fixture
def run(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that runs a command of ``llm`` with the plugin."""
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path / "llm"))
    llm.plugins.load_plugins()
    # If the package is not installed, its entry point is not found.
    is_added = not llm.plugins.pm.is_registered(plugin) and llm.plugins.pm.register(plugin)

    def invoke(*words: str) -> str:
        done = CliRunner().invoke(llm.cli.cli, words)
        assert done.exit_code == 0, done.output
        return done.stdout

    yield invoke
    if is_added:
        llm.plugins.pm.unregister(plugin)


def test_llm_command_lists_and_calls_the_models(run: Any) -> None:
    listed = run("models")
    answer = run("-m", "dragoman/quick", "Hello?")
    logged = run("logs", "--json")
    embedding = run("embed-models")
    vector = run("embed", "-m", "dragoman/quick", "-c", "a red fox")
    assert "dragoman/quick" in listed
    assert "dragoman/local" in listed
    assert answer.startswith("Hello from the scripted model")
    [entry] = json.loads(logged)
    assert entry["model"] == "dragoman/quick"
    assert entry["input_tokens"] == 20
    assert entry["output_tokens"] == 10
    assert "Dragoman: dragoman/quick" in embedding
    assert len(json.loads(vector)) == 64


def test_plugin_entry_point_for_llm_is_declared() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["llm"] == {"dragoman": "dragoman.integrations.llm"}


def test_model_names_of_an_invalid_configuration_are_not_listed(config: Path) -> None:
    assert find_names() == ["local", "quick"]
    config.write_text("adapters: 3\n")
    assert find_names() == ["local"]


def open_scripted(provider: ScriptedProvider) -> DragomanModel:
    return DragomanModel("scripted", lambda name: provider)


@pytest.mark.parametrize("stream", [False, True])
def test_text_and_reasoning_are_returned_to_llm(stream: bool) -> None:
    model = open_scripted(ScriptedProvider(Answer(text="The Rhine.", thinking="A river.")))
    response = model.prompt(
        "Name a river.", system="Be brief.", stream=stream, temperature=0.5, reasoning="low"
    )
    assert response.text() == "The Rhine."
    assert response.usage().input is not None
    assert response.response_json["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_tools_are_run_by_llm(stream: bool) -> None:
    provider = ScriptedProvider(
        Answer(tool_calls=[Call("double", {"n": 21}, id="c1")]), "It is 42."
    )

    def double(n: int) -> int:
        """Double a number."""
        return 2 * n

    chain = open_scripted(provider).chain("Twice 21?", tools=[double], stream=stream)
    assert chain.text() == "It is 42."
    assert provider.requests[1].messages[-1] == ToolResult("c1", "42")


def test_schemas_and_attachments_of_llm_are_sent() -> None:
    provider = ScriptedProvider('{"name": "Rhine"}')
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"name": {"type": "string"}},
        "required": ["name"],
    }
    files = [
        llm.Attachment(type="image/png", content=b"\x89PNG"),
        llm.Attachment(type="application/pdf", content=b"%PDF-1.4"),
        llm.Attachment(type="image/png", url="https://example.com/a.png"),
    ]
    response = open_scripted(provider).prompt("Which river?", schema=schema, attachments=files)
    assert json.loads(response.text()) == {"name": "Rhine"}
    [request] = provider.requests
    assert request.response_schema is not None
    assert {type(block) for block in request.messages[-1].content[1:]} == {Image, Document}


def test_a_conversation_sends_its_earlier_turns() -> None:
    provider = ScriptedProvider("The Rhine.", "The Aare.")
    conversation = open_scripted(provider).conversation()
    assert conversation.prompt("Name a river.").text() == "The Rhine."
    assert conversation.prompt("And another?").text() == "The Aare."
    assert [message.text for message in provider.requests[1].messages] == [
        "Name a river.",
        "The Rhine.",
        "And another?",
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_asynchronous_llm_model_works(server: SimServer, stream: bool) -> None:
    model = AsyncDragomanModel(
        "sim-1",
        lambda name: connect(name, base_url=server.base_urls["anthropic"], wire="anthropic"),
    )
    response = model.prompt("Hello?", stream=stream, max_tokens=50)
    assert (await response.text()).startswith("Hello from")
    assert (await response.usage()).output == 10


def test_texts_are_embedded_in_batches() -> None:
    embedder = SimulatedEmbedder()
    model = DragomanEmbeddingModel("scripted", lambda name: embedder)
    texts = [f"text {number}" for number in range(150)]
    vectors = [*model.embed_multi(texts)]
    assert vectors[149] == model.embed("text 149")
    assert [len(request.texts) for request in embedder.requests] == [100, 50, 1]
    assert [*model.embed_multi([])] == []
    with pytest.raises(ValueError, match="binary"):
        model.embed(b"x")
