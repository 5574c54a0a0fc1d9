"""Test the deployment as its README describes it, with real programs instead of containers.

PostgreSQL, Redis, Caddy and Prometheus are those of Debian, in other versions than the compose file
names; Grafana is in no package index, so Prometheus is asked the queries of its dashboard.
"""

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ..clients.running import find_program
from ..gateway.upstream import EXHAUSTIVE
from ..pages import ROOT
from ..programs import require
from .compose import CHART, DEPLOY, example_values, run_helm
from .standin import build

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(not EXHAUSTIVE, reason="starts a whole deployment; make test-exhaustive"),
]
PANELS = json.loads((DEPLOY / "grafana/gateway.json").read_text())["panels"]
QUERIES = [f"{panel['title']} {each['refId']}" for panel in PANELS for each in panel["targets"]]


@pytest.fixture(scope="module")
def seen() -> Iterator[dict[str, Any]]:
    """Walk through the README in a network of its own; return what was seen."""
    for program in ("caddy", "prometheus", "redis-server"):
        require(program)
    # PostgreSQL runs as another user, who cannot open pytest's own folder.
    with tempfile.TemporaryDirectory(prefix="dragoman-walk-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copytree(DEPLOY, folder / "deploy", ignore=shutil.ignore_patterns(*_ignored()))
        build(folder)
        command = [
            require("bwrap"),
            "--unshare-net",
            "--unshare-pid",
            "--die-with-parent",
            "--cap-add",
            "ALL",
        ]
        command += ["--dev-bind", "/", "/", "--proc", "/proc", sys.executable, "-m"]
        done = subprocess.run(
            [*command, "tests.deploy.walk", name],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        logs = [f"--- {path}\n{path.read_text()[-3000:]}" for path in folder.glob("logs/*")]
        assert done.returncode == 0, "\n".join([done.stderr, *logs])
        yield json.loads(done.stdout.splitlines()[-1])


def _ignored() -> list[str]:
    """Return the files that the commands of the README make, if they were run here."""
    return [".env", "vendors.env", "config", "*.key", "root.crt"]


def test_commands_of_the_readme_end_with_a_reply_over_tls(seen: dict[str, Any]) -> None:
    assert seen["exit code"] == 0
    assert seen["curl"]["choices"][0]["message"]["content"] == "Hello"
    assert seen["health"] == [0, 0]


def test_requests_are_limited_and_need_a_key(seen: dict[str, Any]) -> None:
    for *normal, first, second, third, fourth, without_key in seen["statuses"]:
        assert normal == [200] * 10
        assert 429 in (first, second, third, fourth)  # one request a minute
        assert without_key == 401


def test_prometheus_scrapes_both_gateways(seen: dict[str, Any]) -> None:
    assert seen["targets"] == {"gateway1:8100": "up", "gateway2:8100": "up"}


@pytest.mark.parametrize("query", QUERIES)
def test_queries_of_the_dashboard_return_data(seen: dict[str, Any], query: str) -> None:
    every = [float(each) for each in seen["panels"][query]]
    values = [each for each in every if not math.isnan(each)]  # NaN: no request in these minutes
    assert values
    assert all(map(math.isfinite, values))
    assert any(values) or query.startswith("Requests in flight"), values


def test_alert_rules_are_loaded(seen: dict[str, Any]) -> None:
    groups = yaml.safe_load((CHART / "alerts.yaml").read_text())["groups"]
    names = [rule["alert"] for group in groups for rule in group["rules"]]
    assert seen["rules"] == [[name, "ok"] for name in names]


def test_pod_of_the_chart_becomes_ready_and_sends_traces(seen: dict[str, Any]) -> None:
    require("helm")
    assert seen["pod"] == {"status": 200, "spans of": True}


def test_stopping_one_gateway_fails_no_request(seen: dict[str, Any]) -> None:
    assert seen["during a stop"] == [200]


def test_alert_rules_pass_promtool() -> None:
    done = subprocess.run(
        [require("promtool"), "check", "rules", CHART / "alerts.yaml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_manifests_are_valid_for_kubernetes(tmp_path: Path) -> None:
    validate = find_program("kubernetes", "bin", "kubernetes-validate")
    done = run_helm(
        "template", "gw", CHART, "--set", "prometheus.enabled=false", values=example_values()
    )
    (tmp_path / "all.yaml").write_text(done.stdout)
    for version in ("1.27", "1.37"):
        command = [validate, "--strict", "-k", version, tmp_path / "all.yaml"]
        checked = subprocess.run(
            command, capture_output=True, text=True, check=False, env=dict(os.environ)
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert checked.stderr.count("passed") + checked.stdout.count("passed") == 7
