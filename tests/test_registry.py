"""Names to providers: the file as its authors write it, and as they get it wrong."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from dragoman import AuthenticationError, Capabilities, InvalidModelError
from dragoman.provider import HttpProvider
from dragoman.registry import ConfigError, Registry, config_path, load_vendor, vendor_names
from dragoman.registry import config as config_module
from dragoman.wire import CODECS

EXAMPLE = """\
adapters:
  anthropic:
    type: anthropic
    api_key_env: ANTHROPIC_API_KEY
    base_url: https://api.anthropic.com
    timeout_seconds: 600
    max_retries: 2
  openai:
    type: openai
    api_key_env: OPENAI_API_KEY
    base_url: https://api.openai.com
    timeout_seconds: 600
    max_retries: 2

models:
  anthropic:claude-opus-4-7:
    adapter: anthropic
    wire_name: claude-opus-4-7
    tier: deep
    can_delegate: true
    aliases: [opus, deep]
  anthropic:claude-sonnet-4-6:
    adapter: anthropic
    wire_name: claude-sonnet-4-6
    tier: balanced
    can_delegate: true
    aliases: [sonnet, balanced]
  openai:gpt-5:
    adapter: openai
    wire_name: gpt-5
    tier: balanced
    can_delegate: true
    aliases: [gpt5]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "models.yaml"


def wire_of(provider: Any) -> tuple[str, str, str]:
    assert isinstance(provider, HttpProvider)
    return provider.codec.wire, provider.model, provider.name


def test_the_contracts_own_example(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(EXAMPLE)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-canary-anthropic-1")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    registry = Registry.load(file)
    for name in ("opus", "deep", "anthropic:claude-opus-4-7"):
        assert wire_of(registry.provider(name)) == ("anthropic", "claude-opus-4-7", "anthropic")
    entry = registry.find("opus")
    assert (entry.tier, entry.can_delegate, entry.status) == ("deep", True, "configured")
    assert entry.capabilities.max_context_tokens.source == "catalogue"
    missing = registry.find("gpt5")
    assert missing.status == "not_configured"
    with pytest.raises(AuthenticationError, match="OPENAI_API_KEY"):
        registry.provider("gpt5")
    assert wire_of(registry.provider("gpt5", planning=True))[0] == "openai"
    shown = repr(registry.__dict__) + repr(registry.adapter("anthropic")) + repr(registry.open("opus"))
    assert "canary" not in shown


def test_open_composes_retry_around_observe(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(EXAMPLE.replace("max_retries: 2", "max_retries: 5", 1))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    provider: Any = Registry.load(file).open("sonnet")
    stack = []
    while True:
        stack.append(type(provider).__name__)
        if not hasattr(provider, "inner"):
            break
        provider = provider.inner
    assert stack == ["Retry", "Observe", "HttpProvider"]


def test_the_catalogue_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DRAGOMAN_CONFIG", str(tmp_path / "none.yaml"))
    monkeypatch.setenv("GROQ_API_KEY", "k")
    registry = Registry.load()
    provider: Any = registry.provider("groq:a/model:with-colons")
    assert (provider.model, provider.codec.quirks.usage_path) == ("a/model:with-colons", "x_groq.usage")
    local: Any = registry.provider("llamacpp:anything")
    assert local.codec.quirks.any_model
    assert len(registry.names()) > 300


def test_a_name_that_is_nearly_right(file: Path) -> None:
    file.write_text(EXAMPLE)
    registry = Registry.load(file)
    for wrong, right in (("sonet", "sonnet"), ("antropic:claude-opus-4-7", "anthropic:claude-opus-4-7")):
        with pytest.raises(InvalidModelError, match=f"did you mean.*{right}"):
            registry.find(wrong)
    with pytest.raises(InvalidModelError, match="alias or adapter:model"):
        registry.find("zzzzzzzz")


def test_the_users_word_wins(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MISTRAL_API_KEY", "k")
    file.write_text(
        "adapters: {mine: {type: mistral, base_url: 'http://127.0.0.1:9/v1', extra_headers: {x-team: a},"
        " quirks: {readiness: health}}}\n"
        "models: {mine:m: {wire_name: mistral-large-latest, capabilities: {supports_images: false}}}\n"
    )
    registry = Registry.load(file)
    provider: Any = registry.provider("mine:m")
    assert provider.codec.quirks.readiness == "health"
    assert provider.codec.quirks.id_rule.max_length == 9
    assert provider.capabilities.supports_images.source == "declared"
    assert provider.capabilities.supports_images.value is False
    assert provider.codec.issuer_vendor == "mistral"


def test_a_changed_file_is_read_anew_and_a_bad_one_is_not(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    file.write_text(EXAMPLE)
    registry = Registry.load(file)
    _rewrite(file, EXAMPLE.replace("[opus, deep]", "[big]"))
    assert registry.find("big").wire_name == "claude-opus-4-7"
    with pytest.raises(InvalidModelError):
        registry.find("opus")
    _rewrite(file, "adapters: [")
    assert registry.find("big").wire_name == "claude-opus-4-7"
    assert registry.problem is not None
    assert "models.yaml:2: did not find" in registry.problem
    assert "keeping what was read before" in caplog.text
    _rewrite(file, EXAMPLE)
    assert registry.find("opus")
    assert registry.problem is None
    file.unlink()
    with pytest.raises(InvalidModelError):
        registry.find("opus")


def _rewrite(path: Path, text: str) -> None:
    stamp = path.stat().st_mtime_ns
    path.write_text(text)
    os.utime(path, ns=(stamp + 1_000_000, stamp + 1_000_000))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("adapters: [1]", r"models\.yaml:1: adapters: must be a mapping, not a list"),
        ("- a", r"models\.yaml:1: must be a mapping"),
        ("adapters:\n\tanthropic: {}", r"models\.yaml:2: found character"),
        ("adapters: {a: {type: openai}}\nadapters: {}", r"models\.yaml:2: 'adapters' is there twice"),
        (
            "adapters:\n  a:\n    type: openia",
            r"models\.yaml:3: adapters\.a\.type: .*'openia'; did you mean openai",
        ),
        ("adapters:\n  a:\n    type: openai\n    colour: red", r"models\.yaml:4: adapters\.a\.colour: unknown key"),
        ("adapters:\n  a:\n    type: openai\n    max_retries: no", r"models\.yaml:4: .*whole number, not text"),
        ("adapters:\n  a:\n    type: openai\n    max_retries: 1e3", r"models\.yaml:4: .*whole number, not a number"),
        ("adapters:\n  a:\n    type: openai\n    max_retries: true", r"whole number, not true or false"),
        ("adapters:\n  a:\n    type: openai\n    max_retries: -1", r"between 0 and 100"),
        ("adapters:\n  a:\n    type: openai\n    timeout_seconds: 0", r"must be positive"),
        (
            "adapters:\n  a:\n    type: openai\n    api_key: 2026-01-01\n    base_url: 5",
            r"models\.yaml:5: .*must be text",
        ),
        ("adapters:\n  a:\n    type: openai\n    extra_headers: {x: 1}", r"extra_headers\.x: must be text"),
        ("models:\n  a:b:\n    adapter: nobody", r"models\.yaml:3: models\.a:b\.adapter: no adapter 'nobody'"),
        ("models:\n  openai:b:\n    aliases: [1]", r"aliases: must be a list of texts"),
        (
            "models:\n  openai:b: {aliases: [x]}\n  openai:c: {aliases: [x]}",
            r"models\.yaml:3: .*'x' belongs to openai:b",
        ),
        ("models:\n  openai:b: {capabilities: {flies: true}}", r"capabilities: unknown name 'flies'"),
        ("a: !!python/object:os.system {}", r"unknown key|tag"),
        ("? [a]\n: b", r"a key must be text"),
        ("adapters: !!binary aGk=", r"the tag"),
    ],
)
def test_every_mistake_is_one_line_with_its_place(file: Path, text: str, words: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        Registry.load(file)
    assert "\n" not in str(caught.value)


def test_yaml_surprises_are_text(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO", "k")
    file.write_text("adapters: {a: {type: openai, api_key_env: NO}}\nmodels: {a:m: {tier: no, wire_name: 12:30:45}}")
    entry = Registry.load(file).find("a:m")
    assert (entry.tier, entry.wire_name) == ("no", "12:30:45")


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases: dict[str, Any] = {}
    loop = tmp_path / "loop.yaml"
    loop.symlink_to(loop)
    cases["cannot be read"] = [loop, tmp_path / "missing.yaml", tmp_path]
    (tmp_path / "latin.yaml").write_bytes(b"a: \xff\xfe")
    cases["not UTF-8"] = [tmp_path / "latin.yaml"]
    (tmp_path / "large.yaml").write_bytes(b"#" * (config_module.MAX_BYTES + 1))
    cases["larger than"] = [tmp_path / "large.yaml"]
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(7)
    )
    (tmp_path / "bomb.yaml").write_text(bomb)
    cases["too many values"] = [tmp_path / "bomb.yaml"]
    (tmp_path / "deep.yaml").write_text("[" * 3000)
    cases["deep|expected"] = [tmp_path / "deep.yaml"]
    for words, paths in cases.items():
        for path in paths:
            with pytest.raises(ConfigError, match=words):
                Registry.load(path)
    (tmp_path / "empty.yaml").write_text("")
    assert Registry.load(tmp_path / "empty.yaml").names()


def test_never_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models.yaml").write_text("models: {openai:evil: {aliases: [sonnet]}}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DRAGOMAN_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert config_path() == tmp_path / "config" / "dragoman" / "models.yaml"
    with pytest.raises(InvalidModelError):
        Registry.load().find("sonnet")


@pytest.mark.parametrize("vendor", vendor_names())
def test_every_vendors_file_is_sound(vendor: str) -> None:
    known = load_vendor(vendor)
    assert known.docs.startswith("https://")
    assert known.wire in CODECS
    assert known.local == (known.api_key_env is None)
    CODECS[known.wire].connect("m", known.base_url or "https://x.test", known.quirks or None, Capabilities())
    assert set(known.proofs) == set(known.quirks), "every line of a dialect needs its proof"
    for facts in known.models.values():
        assert facts.max_context_tokens.source in ("catalogue", "unknown")


def test_the_catalogue_has_whom_it_should() -> None:
    assert set(vendor_names()) == {
        "anthropic", "azure", "cerebras", "deepseek", "fireworks", "google", "groq", "llamacpp", "lmstudio",
        "mistral", "ollama", "openai", "openrouter", "sglang", "together", "vllm", "xai",
    }  # fmt: skip
