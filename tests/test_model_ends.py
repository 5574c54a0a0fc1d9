"""The days on which vendors switch models off, and the warnings about them."""

import datetime
import json
import logging
from pathlib import Path

import pytest
from click.testing import CliRunner

from dragoman import capabilities
from dragoman.cli import main
from dragoman.errors import InvalidModelError
from dragoman.registry import Registry, load_vendor, read_list, vendor_names
from dragoman.transport import FixtureTransport

from .server import Connection
from .test_sync import Background

UNKNOWN = b'{"error": {"message": "The model does not exist", "code": "model_not_found"}}'
CONFIG = """\
adapters:
  openai: {type: openai, base_url: "https://api.openai.com/v1", api_key: k}
groups:
  mixed: {candidates: [openai:gpt-5, openai:gpt-6-sol]}
"""


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setattr(capabilities, "_read_today", lambda: datetime.date(2026, 11, 18))
    path = tmp_path / "models.yaml"
    path.write_text(CONFIG)
    return Registry.load(path)


def test_every_retirement_has_a_day_a_source_and_a_listed_successor() -> None:
    count = 0
    for name in vendor_names():
        vendor = load_vendor(name)
        for day, retirement in vendor.retirements.items():
            assert datetime.date.fromisoformat(day).isoformat() == day
            assert datetime.date.fromisoformat(retirement.as_of)
            assert "://" in retirement.source
            assert retirement.models
            for successor in filter(None, retirement.models.values()):
                assert successor in vendor.rows, f"{name}: {successor} is not listed"
                assert successor not in vendor.ends, f"{name}: {successor} ends too"
                count += 1
    assert count > 50


def test_catalogue_knows_the_end_of_a_model_that_it_does_not_list(registry: Registry) -> None:
    assert not load_vendor("xai").lists("grok-3")
    fact = registry.find("xai:grok-3").capabilities.end_date
    assert fact.value == "2026-05-15"
    assert fact.source == "catalogue"
    assert fact.at == "2026-11-18"
    assert registry.find("xai:grok-unknown").capabilities.end_date.value is None


def test_declared_end_overrides_the_catalogue(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text("models:\n  openai:gpt-5: {capabilities: {end_date: 2030-01-01}}\n")
    known = Registry.load(path).find("openai:gpt-5").capabilities
    assert known.end_date.value == "2030-01-01"
    assert known.end_date.source == "declared"


@pytest.mark.parametrize("name", ["openai:gpt-5", "mixed"])
def test_opening_a_model_that_ends_soon_warns_once(
    name: str, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    registry.open(name)
    registry.open(name)
    assert [record.getMessage() for record in caplog.records] == [
        "The vendor switches openai:gpt-5 off on 2026-12-11, in 23 days; it recommends gpt-5.6-sol"
    ]


@pytest.mark.parametrize("name", ["openai:gpt-6-sol", "openai:gpt-5.1"])
def test_opening_a_model_that_does_not_end_soon_causes_no_warning(
    name: str, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    registry.open(name)
    registry.provider("openai:gpt-5", planning=True)
    assert caplog.records == []


async def test_error_about_an_ended_model_names_its_end_and_its_successor(
    registry: Registry,
) -> None:
    for name, notice in [
        ("gpt-4", "The vendor switched gpt-4 off on 2026-10-23; it recommends gpt-5.6-sol."),
        ("gpt-6-sol", ""),
    ]:
        transport = FixtureTransport((404, {}, [UNKNOWN]))
        model = registry.provider(f"openai:{name}", transport=transport)
        with pytest.raises(InvalidModelError) as caught:
            await model.complete("Hello")
        # the server decides: a model that has ended is still asked for
        assert len(transport.requests) == 1
        assert str(caught.value).count("The vendor switched") == (1 if notice else 0)
        assert notice in str(caught.value)
        assert "Check the model's name" in str(caught.value)


async def test_ended_model_that_answers_is_used(registry: Registry) -> None:
    reply = b'{"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}'
    model = registry.provider(
        "openai:gpt-4", wire="openai", transport=FixtureTransport((200, {}, [reply]))
    )
    assert (await model.complete("Hello")).text == "Hi"


async def test_readiness_check_warns_about_the_end(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    listed = json.dumps({"data": [{"id": "gpt-5"}]}).encode()
    model = registry.provider("openai:gpt-5", transport=FixtureTransport((200, {}, [listed])))
    caplog.clear()
    await model.ready()
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (
            logging.WARNING,
            "openai/gpt-5: The vendor switches gpt-5 off on 2026-12-11, in 23 days; it recommends "
            "gpt-5.6-sol",
        )
    ]


def test_ready_command_prints_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capabilities, "_read_today", lambda: datetime.date(2026, 11, 18))

    async def list_models(connection: Connection) -> None:
        connection.reply(200, json.dumps({"data": [{"id": "gpt-5"}]}).encode())

    with Background(list_models) as server:
        path = tmp_path / "models.yaml"
        path.write_text(f'adapters:\n  openai: {{type: openai, base_url: "{server.url}"}}\n')
        environment = {"DRAGOMAN_CONFIG": str(path)}
        shown = CliRunner().invoke(main, ["ready", "openai:gpt-5"], env=environment)
        data = CliRunner().invoke(main, ["ready", "openai:gpt-5", "--json"], env=environment)
    assert shown.stdout == "gpt-5 is ready\n"
    assert shown.stderr.count("in 23 days; it recommends gpt-5.6-sol") == 1
    assert json.loads(data.stdout) == {
        "ready": True, "model": "gpt-5", "ends": "2026-12-11", "successor": "gpt-5.6-sol",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("content", "ends"),
    [
        ({"groq/x": {"litellm_provider": "groq", "mode": "chat", "max_input_tokens": 9,
                     "deprecation_date": "2027-01-31"}}, "2027-01-31"),
        ({"groq/x": {"litellm_provider": "groq", "mode": "chat", "max_input_tokens": 9,
                     "deprecation_date": "2027-02-30"}}, None),
        ({"data": [{"id": "x", "expiration_date": "2027-01-31"}]}, "2027-01-31"),
        ({"data": [{"id": "x", "expiration_date": None}]}, None),
    ],
)  # fmt: skip
def test_public_lists_of_models_have_end_dates(content: object, ends: str | None) -> None:
    _, listed = read_list(json.dumps(content).encode())
    (models,) = listed.values()
    assert models["x"].facts.get("ends") == ends
