"""The gateway passes ``dragoman check`` with a model that supports every feature."""

import pytest

from dragoman.conformance import check_server
from dragoman.gateway.app import create_app
from dragoman.sim import ScriptedProvider

from ..gateway.serving import serving
from .test_live import GOOD


@pytest.mark.parametrize(
    ("wire", "path"), [("openai", "/v1"), ("anthropic", ""), ("responses", "/v1")]
)
async def test_gateway_passes_the_server_checks(wire: str, path: str) -> None:
    async with serving(create_app({"m": ScriptedProvider(*GOOD.rules, model="m")})) as url:
        report = await check_server(url + path, "m", wire, context=300)
    assert [
        (outcome.name, outcome.detail) for outcome in report.outcomes if outcome.status == "fail"
    ] == []
    assert report.counts["pass"] >= 28
    assert all(
        report.probes[name]
        for name in ("tools", "parallel_tools", "forced_choice", "schema", "images", "cancel")
    )
