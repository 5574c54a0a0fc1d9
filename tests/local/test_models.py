"""Test names, files and defaults of local models, without a server."""

import hashlib
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

import dragoman as d
from dragoman.local import WeightsError, find_model, list_models, pull_model, remove_model
from dragoman.local.catalog import load_catalog

CONTENT = b"GGUF and the rest"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DRAGOMAN_LOCAL_THREADS", raising=False)
    return tmp_path / "cache"


def test_every_bundled_model_has_distinct_digests_and_a_default_exists() -> None:
    catalog = load_catalog()
    assert not catalog.models[catalog.default].embeds
    assert catalog.models[catalog.default_embedder].embeds
    assert any(model.calls_tools for model in catalog.models.values())
    for model in catalog.models.values():
        digests = [model.sha256, *[wheel.sha256 for wheel in model.wheels]]
        assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in digests)
        assert len(set(digests)) == len(digests)
        assert model.wheels
        assert model.threads == 1
        if not model.embeds:
            assert model.defaults.system
            assert model.defaults.temperature == 0.2
        assert model.template is None or "tool_calls" in model.template_text()


def test_description_of_a_local_model_shows_its_default_settings() -> None:
    assert d.describe(d.connect("local")) == (
        "LocalProvider(model='smollm2-135m-instruct', threads=1, context=4096, "
        "system='Answer the question in plain English.', temperature=0.2, "
        "extras='dry_multiplier, dry_base, dry_allowed_length, dry_penalty_last_n, "
        "dry_sequence_breakers', max_tokens=400)"
    )
    assert d.describe(d.connect("local:./mine.gguf")) == (
        "LocalProvider(model='mine', threads=1, context=4096, max_tokens=400)"
    )


def test_call_settings_override_the_defaults_of_a_local_model() -> None:
    provider = d.LocalProvider()
    plain = provider._with_defaults(d.Request((d.User("Hi"),)))  # noqa: SLF001 - the request as the embedded server gets it
    assert plain.messages == (d.System("Answer the question in plain English."), d.User("Hi"))
    assert plain.config.temperature == 0.2
    assert plain.config.max_tokens == 400
    config = d.RuntimeConfig(
        temperature=0, max_tokens=5, top_p=0.5, extras={"top_k": 3, "dry_multiplier": 0}
    )
    given = d.Request((d.System("Be terse."), d.User("Hi")), config=config)
    sent = provider._with_defaults(given)  # noqa: SLF001 - the request as the embedded server gets it
    assert sent.messages == given.messages
    assert replace(sent.config, extras={}) == replace(config, extras={})
    assert sent.config.extras == {**plain.config.extras, "top_k": 3, "dry_multiplier": 0}


def test_number_of_threads_is_configurable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_LOCAL_THREADS", "3")
    assert d.LocalProvider().settings()["threads"] == 3
    assert d.LocalProvider(threads=2).settings()["threads"] == 2
    for wrong in ("0", "-1", "many", "²"):
        monkeypatch.setenv("DRAGOMAN_LOCAL_THREADS", wrong)
        with pytest.raises(ValueError, match="DRAGOMAN_LOCAL_THREADS must be"):
            d.LocalProvider()


def test_bundled_models_are_opened_by_name() -> None:
    assert d.connect("local:qwen").model == "qwen2.5-coder-1.5b-instruct"
    assert d.connect("local:smollm2").model == d.connect("local").model
    assert d.Registry().open("local").model == d.connect("local").model


def test_chat_models_do_not_embed_and_embedding_models_do_not_chat() -> None:
    assert d.connect_embedder("local").model == "all-minilm-l6-v2"
    with pytest.raises(d.InvalidModelError, match=r"is made for chat; .*; use local:minilm"):
        d.connect_embedder("local:smollm2")
    with pytest.raises(d.InvalidModelError, match="embeds texts and cannot chat; use local:smol"):
        d.connect("local:minilm")


def test_error_for_an_unknown_model_lists_the_known_names(tmp_path: Path) -> None:
    (tmp_path / "mine.gguf").write_bytes(CONTENT)
    pull_model(tmp_path / "mine.gguf")
    with pytest.raises(
        d.InvalidModelError, match=r"'quen'; known are smollm2, minilm, qwen, mine, and any \.gguf"
    ):
        d.connect("local:quen")
    with pytest.raises(
        WeightsError, match=r"one of smollm2, minilm, qwen, hf:owner/repo/file\.gguf or"
    ):
        pull_model("quen")


def test_pulling_a_local_file_copies_it_under_its_name(tmp_path: Path, cache: Path) -> None:
    source = tmp_path / "mine.gguf"
    source.write_bytes(CONTENT)
    pulled = pull_model(str(source))
    assert pulled.name == "mine"
    assert Path(pulled.path) == cache / "models" / "mine.gguf"
    assert pulled.sha256 == hashlib.sha256(CONTENT).hexdigest()
    source.unlink()
    assert d.connect("local:mine").model == "mine"
    assert [model.name for model in list_models()] == ["smollm2", "minilm", "qwen", "mine"]
    assert remove_model("mine")
    assert [model.name for model in list_models()] == ["smollm2", "minilm", "qwen"]
    assert [path for path in cache.rglob("*") if path.is_file()] == []


def test_files_that_are_not_usable_models_are_rejected(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "text.gguf").write_bytes(b"hello")
    (tmp_path / "mine.gguf").write_bytes(CONTENT)
    with pytest.raises(WeightsError, match="does not exist"):
        pull_model("./nothing.gguf")
    with pytest.raises(WeightsError, match="not a GGUF file"):
        pull_model(tmp_path / "text.gguf")
    with pytest.raises(WeightsError, match="wrong contents"):
        pull_model(tmp_path / "mine.gguf", sha256="0" * 64)
    with pytest.raises(WeightsError, match="leave out name and sha256"):
        pull_model("qwen", name="other")
    with pytest.raises(WeightsError, match="your own file"):
        remove_model(str(tmp_path / "mine.gguf"))
    assert [path for path in cache.rglob("*") if path.is_file()] == []
    assert find_model(tmp_path / "mine.gguf").is_managed is False
