"""``dragoman import``: the configuration of LiteLLM's proxy becomes models.yaml and keys.yaml."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner, Result

import dragoman as d
from dragoman.cli import main
from dragoman.compat.litellm.names import read_table
from dragoman.gateway import create_app
from dragoman.gateway.keys import KeyRing
from dragoman.registry import Registry, vendor_names
from dragoman.sim import ScriptedProvider, SimServer
from dragoman.transport.serving import serving
from dragoman.validate.yaml import read_yaml

CONFIG = """\
model_list:
  - model_name: balanced
    litellm_params: {model: azure/mine, api_base: https://eu.openai.azure.com/, api_key: os.environ/EU, weight: 3}
    model_info: {base_model: azure/gpt-4o, id: a, supports_vision: true}
  - model_name: balanced
    litellm_params: {model: openai/gpt-4o, api_key: sk-canary-0123456789, temperature: 0.2, rpm: 20_000}
  - model_name: claude
    litellm_params: {model: anthropic/claude-sonnet-4-6, timeout: 30}
  - {model_name: nova, litellm_params: {model: "bedrock/converse/amazon.nova-lite-v1:0", aws_region_name: eu-west-3}}
  - {model_name: gem, litellm_params: {model: vertex_ai/gemini-2.5-pro, vertex_project: p, vertex_location: europe-west1}}
  - {model_name: sonar, litellm_params: {model: perplexity/sonar}}
  - {model_name: "groq/*", litellm_params: {model: "groq/*"}}
  - {model_name: odd, litellm_params: {model: sagemaker/x}}
  - {model_name: late, litellm_params: {model: openai/x, api_base: os.environ/LATE_BASE}}
router_settings:
  routing_strategy: latency-based-routing
  fallbacks: [{claude: [nova, lost]}]
  num_retries: 3
  cooldown_time: 30
  model_group_alias: {quick: claude, none: lost}
  redis_host: h
litellm_settings: {drop_params: true, callbacks: [langfuse], request_timeout: 60}
general_settings:
  master_key: sk-1234
  database_url: postgresql://u:p@h/db
environment_variables: {A: sk-canary-0123456789}
"""
REMARKS = {
    4: ["model_list[0].model_info.supports_vision: has no equal"],
    6: [
        "model_list[1].litellm_params.temperature: has no equal",
        "model_list[1].litellm_params.api_key: a key in plain text is not copied; put it in"
        " OPENAI_API_KEY_1",
    ],
    13: [
        "model_list[7].litellm_params.model: no vendor is known for 'sagemaker/x'; add an adapter"
    ],
    14: [
        "model_list[8].litellm_params.api_base: the value of LATE_BASE is not copied; write it into"
        " this file, or models.yaml"
    ],
    17: ["router_settings.fallbacks: no model is named 'lost'"],
    20: ["router_settings.model_group_alias: none: no model is named 'lost'"],
    21: [f"router_settings.redis_host: {read_table().advice['redis_host']}"],
    22: [f"litellm_settings.callbacks: {read_table().advice['callbacks']}"],
    25: [f"general_settings.database_url: {read_table().advice['database_url']}"],
    26: [f"environment_variables: {read_table().advice['environment_variables']}"],
}


def run(folder: Path, *words: str, config: str | None = CONFIG) -> Result:
    if config is not None:
        (folder / "config.yaml").write_text(config)
    words = ("import", "litellm", str(folder / "config.yaml"), "--output", str(folder), *words)
    return CliRunner().invoke(main, words)


def test_every_setting_without_an_equal_is_listed_with_its_line(tmp_path: Path) -> None:
    shown = json.loads(run(tmp_path, "--json").stdout)
    assert shown["files"] == [str(tmp_path / "models.yaml"), str(tmp_path / "keys.yaml")]
    found: dict[int, list[str]] = {}
    for each in shown["remarks"]:
        found.setdefault(each["line"], []).append(each["problem"])
    assert dict(sorted(found.items())) == REMARKS
    printed = run(tmp_path, "--force")
    assert printed.stdout.split() == shown["files"]
    assert f"remark: {tmp_path / 'config.yaml'}:13: {REMARKS[13][0]}" in printed.stderr


def test_strict_import_writes_nothing_if_a_setting_has_no_equal(tmp_path: Path) -> None:
    refused = run(tmp_path, "--strict")
    assert refused.exit_code == 2
    assert REMARKS[13][0] in refused.stderr
    assert not list(tmp_path.glob("models.yaml"))
    config = "model_list:\n  - {model_name: m, litellm_params: {model: openai/gpt-4o}}\n"
    assert run(tmp_path, "--strict", config=config).exit_code == 0
    assert (tmp_path / "models.yaml").exists()


def test_models_groups_and_settings_are_converted(tmp_path: Path) -> None:
    run(tmp_path)
    made: dict[str, Any] = read_yaml(tmp_path / "models.yaml").plain()
    late = {"max_retries": 3, "timeouts": {"first_event": 60, "idle": 60}}
    assert made["adapters"]["azure"] == {
        "type": "azure", "base_url": "https://eu.openai.azure.com/openai/v1",
        "api_key_env": "EU", **late,
    }  # fmt: skip
    assert made["adapters"]["anthropic"] == {
        "type": "anthropic", "max_retries": 3, "timeouts": {"first_event": 30, "idle": 30},
    }  # fmt: skip
    assert made["adapters"]["bedrock"]["auth"] == {"type": "aws", "region": "eu-west-3"}
    assert "/projects/p/locations/europe-west1/" in made["adapters"]["google"]["base_url"]
    assert made["adapters"]["perplexity"] == {"type": "perplexity", **late}
    assert made["models"]["azure:mine"] == {"priced_as": "azure:gpt-4o"}
    assert made["groups"]["balanced"] == {
        "strategy": "lowest_latency", "max_retries": 3,
        "candidates": [
            {"model": "azure:mine", "weight": 3},
            {"model": "openai:gpt-4o", "weight": 20000, "rate_limit": {"requests_per_minute": 20000}},
        ],
    }  # fmt: skip
    assert made["groups"]["claude"]["aliases"] == ["quick"]
    registry = Registry.load(tmp_path / "models.yaml")
    candidates = registry.groups()["claude"].candidates
    expected = ["anthropic:claude-sonnet-4-6", "bedrock:amazon.nova-lite-v1:0"]
    assert [each.model for each in candidates] == expected
    assert registry.aliases()["sonar"] == "perplexity:sonar"
    assert registry.served()["groq/openai/gpt-oss-120b"] == "groq:openai/gpt-oss-120b"


@pytest.mark.parametrize(
    ("more", "strategy", "models"),
    [
        ("", "weighted", ["openai:a", "openai:b"]),
        ("router_settings: {routing_strategy: usage-based-routing-v2}", "weighted", None),
        ("router_settings: {fallbacks: [{m: [c]}]}", "weighted", ["openai:a", "openai:b", "openai:c"]),
        ("litellm_settings: {default_fallbacks: [c]}", "weighted", None),
    ],
)  # fmt: skip
def test_groups_are_converted(
    more: str, strategy: str, models: list[str] | None, tmp_path: Path
) -> None:
    listed = "".join([
        f"  - {{model_name: {name}, litellm_params: {{model: openai/{model}}}}}\n"
        for name, model in (("m", "a"), ("m", "b"), ("c", "c"))
    ])  # fmt: skip
    result = run(tmp_path, config=f"model_list:\n{listed}{more}\n")
    group = Registry.load(tmp_path / "models.yaml").groups()["m"]
    assert group.strategy == strategy
    assert models in (None, [each.model for each in group.candidates])
    assert [each.weight for each in group.candidates if each.model == "openai:c"] in ([], [0])
    assert ("usage-based" in more) == ("remark" in result.stderr)


def test_imported_keys_are_hashed_and_existing_files_are_kept(tmp_path: Path) -> None:
    result = run(tmp_path)
    for name in ("models.yaml", "keys.yaml"):
        text = (tmp_path / name).read_text()
        assert "canary" not in text + result.output
        assert "sk-1234" not in text + result.output
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    key = KeyRing.load(tmp_path / "keys.yaml").find("sk-1234")
    assert key.id == "master"
    assert key.on_loss == "drop"
    (tmp_path / "models.yaml").unlink()
    refused = run(tmp_path)
    assert refused.exit_code == 2
    assert "keys.yaml exists; use --force" in refused.stderr
    assert not (tmp_path / "models.yaml").exists()
    assert run(tmp_path, "--force").exit_code == 0


@pytest.mark.parametrize(
    ("location", "host"),
    [
        ("europe-west1", "europe-west1-aiplatform.googleapis.com"),
        ("global", "aiplatform.googleapis.com"),
        ("eu", "aiplatform.eu.rep.googleapis.com"),
    ],
)
def test_claude_and_gemini_of_a_cloud_have_their_addresses(
    location: str, host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = f"vertex_project: p, vertex_location: {location}"
    foundry = "api_base: https://r.services.ai.azure.com, api_key: os.environ/AZURE_AI_API_KEY"
    config = (
        "model_list:\n"
        f"  - {{model_name: a, litellm_params: {{model: vertex_ai/claude-opus-5-5, {cloud}}}}}\n"
        f"  - {{model_name: b, litellm_params: {{model: vertex_ai/gemini-3.8-flash, {cloud}}}}}\n"
        f"  - {{model_name: c, litellm_params: {{model: azure_ai/claude-opus-5-5, {foundry}}}}}\n"
    )
    assert run(tmp_path, "--strict", config=config).exit_code == 0
    made: dict[str, Any] = read_yaml(tmp_path / "models.yaml").plain()
    place = f"https://{host}/v1/projects/p/locations/{location}/publishers"
    assert made["adapters"]["vertex"]["base_url"] == f"{place}/anthropic"
    assert made["adapters"]["vertex"]["auth"] == {"type": "google"}
    assert made["adapters"]["google"]["base_url"] == f"{place}/google"
    monkeypatch.setenv("AZURE_AI_API_KEY", "k")
    registry = Registry.load(tmp_path / "models.yaml")
    for name, url in (
        ("azure:claude-opus-5-5", "https://r.services.ai.azure.com/anthropic/v1/messages"),
        ("vertex:claude-opus-5-5", f"{place}/anthropic/models/claude-opus-5-5:rawPredict"),
        ("google:gemini-3.8-flash", f"{place}/google/models/gemini-3.8-flash:generateContent"),
    ):
        model: Any = registry.open(name)
        while not hasattr(model, "codec"):  # retries
            model = model.inner
        config_of_call = d.RuntimeConfig(max_tokens=9)
        sent = model.preview(d.Request([d.User("Hi")], config=config_of_call)).http
        assert sent.url == url


@pytest.mark.parametrize(
    "setting",
    [
        "api_base: os.environ/CANARY", "custom_llm_provider: os.environ/CANARY",
        "aws_region_name: os.environ/CANARY", "api_version: os.environ/CANARY",
        "vertex_project: os.environ/CANARY", "api_key: os.environ/CANARY",
    ],
)  # fmt: skip
@pytest.mark.parametrize("model", ["openai/x", "azure/x", "bedrock/x", "vertex_ai/x"])
def test_value_of_a_variable_is_neither_copied_nor_printed(
    setting: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY", "sk-leaked-0123456789")
    config = (
        "model_list:\n  - model_name: m\n    litellm_params:\n"
        f"      model: {model}\n      {setting}\n"
    )
    result = run(tmp_path, config=config)
    written = "".join([path.read_text() for path in tmp_path.glob("*.yaml")])
    assert "sk-leaked" not in result.output + written
    assert "CANARY" in result.output + written
    assert not isinstance(result.exception, Exception) or isinstance(result.exception, SystemExit)


@pytest.mark.parametrize(
    "more",
    [
        "litellm_settings: {default_fallbacks: 5}",
        "litellm_settings: {default_fallbacks: [[1]]}",
        "router_settings: {fallbacks: [a, b]}",
        "router_settings: {fallbacks: [{m: 5}]}",
        "router_settings: {model_group_alias: {a: {model: [1]}}}",
        "router_settings: {model_group_alias: {a: [1]}}",
        "router_settings: {routing_strategy: [1]}",
        "router_settings: {num_retries: .inf, timeout: .nan, cooldown_time: 1e400}",
    ],
)
def test_setting_of_a_wrong_type_is_a_remark_or_an_error(more: str, tmp_path: Path) -> None:
    models = "".join(
        [f"  - {{model_name: m, litellm_params: {{model: openai/{model}}}}}\n" for model in "ab"]
    )
    result = run(tmp_path, config=f"model_list:\n{models}{more}\n")
    assert isinstance(result.exception, SystemExit | None)
    assert "dictionary update sequence" not in result.output


def test_an_invalid_file_is_reported_with_its_line(tmp_path: Path) -> None:
    for config, problem in (("model_list: [1]\n", "model_list[0]: must be a mapping"), (None, "")):
        (tmp_path / "config.yaml").unlink(missing_ok=True)
        result = run(tmp_path, config=config)
        assert result.exit_code == 2
        assert problem in result.stderr
        assert "Traceback" not in result.output


async def test_imported_files_serve_a_request(tmp_path: Path) -> None:
    with SimServer(ScriptedProvider("Hi.")) as server:
        config = (
            "model_list:\n  - model_name: fast\n    litellm_params:\n"
            f"      {{model: openai/m, api_base: {server.url}/v1, rpm: 60}}\n"
            "  - model_name: other\n    litellm_params:\n"
            f"      {{model: anthropic/m, api_base: {server.url}, api_key: os.environ/HOME}}\n"
            "general_settings: {master_key: sk-1234}\n"
        )
        run(tmp_path, config=config)
        async with Registry.load(tmp_path / "models.yaml") as registry:
            app = create_app(registry, keys=KeyRing.load(tmp_path / "keys.yaml"))
            async with (
                serving(app, host="127.0.0.1", port=0) as url,
                aiohttp.ClientSession(url) as client,
            ):
                for model, key, status in (
                    ("fast", "sk-1234", 200),
                    ("other", "sk-1234", 200),
                    ("fast", "sk-0", 401),
                ):
                    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}]}
                    headers = {"authorization": f"Bearer {key}"}
                    reply = await client.post("/v1/chat/completions", json=body, headers=headers)
                    made = await reply.json()
                    assert reply.status == status
                    assert status != 200 or made["choices"][0]["message"]["content"] == "Hi."
    assert [request.model for request in server.requests] == ["m", "m"]


def test_every_route_leads_to_a_vendor_of_the_catalogue_or_an_address() -> None:
    table = read_table()
    needs_place = ("litellm_proxy", "openai_like")
    for name, route in table.routes.items():
        assert route.vendor in vendor_names() or route.base_url or name in needs_place
        assert bool(route.settings) == bool(route.template or route.variables)
    assert set(table.unprefixed) <= set(table.routes)
