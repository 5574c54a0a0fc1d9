"""The variables that ``docs/howto/serve.md`` exports connect each vendor's SDK to the gateway: a
program that has these variables, and no others of a vendor, gets a call of a tool.
"""

import asyncio
import contextlib
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from dragoman.gateway.app import create_app
from dragoman.gateway.clients import ADDRESS, read_clients
from dragoman.gateway.keys import Key, KeyRing, hash_key
from dragoman.messages import Request
from dragoman.sim import Answer, Call, ScriptedProvider, ScriptRule
from tests.pages import ROOT
from tests.waiting import arrival

from .serving import serving, serving_tls

PAGE = ROOT / "docs" / "howto" / "serve.md"
# Each program asks for the weather, offers a tool, and prints the argument with which it is called.
PROGRAMS = {
    "OPENAI_BASE_URL": """
import openai
tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
asked = [{"role": "user", "content": "Hi"}]
made = openai.OpenAI().chat.completions.create(model="fast", messages=asked, tools=[tool])
print(made.choices[0].message.tool_calls[0].function.arguments)
""",
    "ANTHROPIC_BASE_URL": """
import anthropic
tool = {"name": "weather", "input_schema": {"type": "object"}}
asked = [{"role": "user", "content": "Hi"}]
client = anthropic.Anthropic()
made = client.messages.create(model="fast", max_tokens=90, messages=asked, tools=[tool])
print(made.content[-1].input)
""",
    "OLLAMA_HOST": """
import ollama
tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
made = ollama.chat("fast", [{"role": "user", "content": "Hi"}], tools=[tool])
print(made.message.tool_calls[0].function.arguments)
""",
    "CO_API_URL": """
import cohere
tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
asked = [{"role": "user", "content": "Hi"}]
made = cohere.ClientV2().chat(model="fast", messages=asked, tools=[tool])
print(made.message.tool_calls[0].function.arguments)
""",
    "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": """
import boto3
tool = {"toolSpec": {"name": "weather", "inputSchema": {"json": {"type": "object"}}}}
asked = [{"role": "user", "content": [{"text": "Hi"}]}]
client = boto3.client("bedrock-runtime")
made = client.converse(modelId="fast", messages=asked, toolConfig={"tools": [tool]})
print(made["output"]["message"]["content"][-1]["toolUse"]["input"])
""",
}
EXPORTS = re.findall(r"^\$ export (.*)$", PAGE.read_text(), flags=re.MULTILINE)
TABLE = [dict(pair.split("=", 1) for pair in line.split()) for line in EXPORTS]


@contextlib.asynccontextmanager
async def without_authority(app: Any) -> AsyncIterator[tuple[str, str]]:
    """Serve an application without TLS, which needs no certificate."""
    async with serving(app) as url:
        yield url, ""


def answer(request: Request) -> Answer:
    return Answer(tool_calls=[Call(request.tools[0].name, {"city": "Paris"})])


# The fields that the documentation of programs with a window has: VS Code's page on language models
# (commit 024cb9bd of microsoft/vscode-docs) and Zed's page on API access (commit 03560fd4 of
# zed-industries/zed), read on 2026-11-19.
VS_CODE = {"name", "vendor", "apiKey", "apiType", "url", "models"}
VS_CODE_MODEL = {
    "id", "name", "url", "apiType", "toolCalling", "vision", "maxInputTokens", "maxOutputTokens",
    "editTools", "thinking", "streaming", "zeroDataRetentionEnabled", "supportsReasoningEffort",
    "reasoningEffortFormat", "requestHeaders", "contextWindow", "modelOptions",
}  # fmt: skip
ZED = {"api_url", "available_models", "custom_headers"}
ZED_MODEL = {
    "name", "display_name", "max_tokens", "max_output_tokens", "max_completion_tokens",
    "reasoning_effort", "capabilities",
}  # fmt: skip
ZED_CAPABILITIES = {
    "tools", "images", "parallel_tool_calls", "prompt_cache_key", "chat_completions",
    "interleaved_reasoning", "max_tokens_parameter",
}  # fmt: skip


async def test_settings_of_vs_code_are_documented_and_reach_a_model() -> None:
    (given,) = json.loads(read_clients()["vs-code"].steps[0].text)
    (listed,) = given["models"]
    assert given.keys() <= VS_CODE
    assert listed.keys() <= VS_CODE_MODEL
    assert given["vendor"] == "customendpoint"
    assert given["apiType"] == "messages"
    assert listed["toolCalling"] is True  # agents see no other models
    assert listed["maxInputTokens"] + listed["maxOutputTokens"] == 200_000
    async with serving(create_app({"clever": ScriptedProvider(ScriptRule(answer))})) as url:
        address = listed["url"].replace(ADDRESS, url)
        async with anthropic.AsyncAnthropic(
            api_key=given["apiKey"], base_url=address.removesuffix("/v1/messages")
        ) as client:
            made = await client.messages.create(
                model=listed["id"],
                max_tokens=listed["maxOutputTokens"] // 100,
                messages=[{"role": "user", "content": "Hi"}],
                tools=[{"name": "weather", "input_schema": {"type": "object"}}],
            )
    assert [block.input for block in made.content if block.type == "tool_use"] == [
        {"city": "Paris"}
    ]


async def test_settings_of_zed_are_documented_and_reach_a_model() -> None:
    first, second = read_clients()["zed"].steps
    (provider,) = json.loads(first.text)["language_models"]["openai_compatible"].items()
    name, given = provider
    (listed,) = given["available_models"]
    assert given.keys() <= ZED
    assert listed.keys() <= ZED_MODEL
    assert listed["capabilities"].keys() <= ZED_CAPABILITIES
    # Zed reads the key from a variable that is named after the provider.
    assert second.run == f"{name.upper()}_API_KEY=unused zed\n"
    async with (
        serving(create_app({"clever": ScriptedProvider(ScriptRule(answer))})) as url,
        openai.AsyncOpenAI(
            api_key="unused", base_url=given["api_url"].replace(ADDRESS, url)
        ) as client,
    ):
        made = await client.chat.completions.create(
            model=listed["name"],
            messages=[{"role": "user", "content": "Hi"}],
            tools=[{"type": "function", "function": {"name": "weather", "parameters": {}}}],
        )
    (call,) = made.choices[0].message.tool_calls or ()
    assert call.type == "function"
    assert json.loads(call.function.arguments) == {"city": "Paris"}


def test_every_line_of_the_page_has_a_program() -> None:
    assert {next(iter(variables)) for variables in TABLE} == set(PROGRAMS)
    assert len(TABLE) == len(PROGRAMS) + 1  # boto3 has a line for gateways with keys, too


@pytest.mark.parametrize("variables", TABLE, ids=lambda each: ", ".join(each))
async def test_the_variables_of_the_page_connect_an_sdk(
    variables: dict[str, str], tmp_path: Path
) -> None:
    first, address = next(iter(variables.items()))
    model = ScriptedProvider(ScriptRule(answer))
    if address.startswith("https:"):
        keys = KeyRing([Key("ada", hash_key("dg-..."))])
        server = serving_tls(create_app({"fast": model}, keys=keys), tmp_path)
    else:
        server = without_authority(create_app({"fast": model}))
    async with server as (url, authority):
        given = {**variables, first: re.sub(r"^https?://[^/]*", url, address)}
        given["AWS_DEFAULT_REGION"] = "us-east-1"  # stated below the block
        if authority:
            given["AWS_CA_BUNDLE"] = authority
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-W", "ignore", "-c", PROGRAMS[first],
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **given},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        printed, _ = await arrival(process.communicate(), "the end of the program")
    assert process.returncode == 0, printed.decode()
    assert "Paris" in printed.decode()
