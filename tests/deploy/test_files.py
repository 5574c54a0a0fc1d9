"""Test the files in ``deploy`` without starting anything: what one of them names, another one has.

The README's commands count as well: a file or a secret that they make exists.
"""

import asyncio
import datetime
import json
import re
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer
from scripts import images

from dragoman.cli import main
from dragoman.gateway.keys import KeyRing
from dragoman.gateway.metrics import Metrics
from dragoman.registry import Registry
from dragoman.validate.schema import compile_schema, first_error

from ..pages import ROOT
from ..rows import read_table
from .compose import (
    CHART,
    DEPLOY,
    DOCKERFILE,
    ENV,
    MADE,
    PORTS,
    UnsetVariableError,
    example_values,
    list_mounts,
    read_compose,
    read_readme,
    render,
    run_helm,
)

COMPOSE = read_compose(ENV)
SERVICES: dict[str, Any] = COMPOSE["services"]
IMAGE_COMMAND: list[str] = json.loads(re.findall(r"^CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)[-1])


# --- the image ---------------------------------------------------------------------------------


def test_container_image_runs_without_root_and_without_pip() -> None:
    stages = DOCKERFILE.split("\nFROM ")[1:]
    assert len(stages) == 2
    assert re.search(r"^USER (?!0|root)", stages[1], re.MULTILINE)
    assert "pip install" not in stages[1]


def test_container_image_is_built_from_pinned_parts() -> None:
    bases = re.findall(r"^ARG PYTHON=(.*)$", DOCKERFILE, re.MULTILINE)
    assert [bool(re.match(r"\d+\.\d+\.\d+-", base)) for base in bases] == [True]
    assert set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)) == {"python:${PYTHON}"}
    installs = re.findall(r"pip install (.*?)(?: \\)?$", DOCKERFILE, re.MULTILINE)
    assert len(installs) == 2
    for options in installs:
        assert "--require-hashes" in options or "--no-deps" in options, options


def test_container_image_gets_every_file_that_its_build_copies() -> None:
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    sent = {line[1:] for line in ignored if line.startswith("!")}
    copies = re.findall(r"^COPY (?!--)(.*) \S+$", DOCKERFILE, re.MULTILINE)
    copied = {each for line in copies for each in line.split()}
    assert copied == sent
    assert [each for each in copied if not (ROOT / each).exists()] == []


def test_health_check_asks_the_port_without_tls_of_every_command() -> None:
    (port,) = re.findall(r"HEALTHCHECK .*http://127\.0\.0\.1:(\d+)/health", DOCKERFILE)
    for command in (IMAGE_COMMAND, *[SERVICES[name]["command"] for name in GATEWAYS]):
        assert f"--ready-port={port}" in command
    assert port in re.findall(r"^EXPOSE (.*)$", DOCKERFILE, re.MULTILINE)[0].split()


# --- compose -----------------------------------------------------------------------------------

GATEWAYS = ("gateway1", "gateway2")


def test_every_variable_of_the_compose_file_is_needed_and_made() -> None:
    used = set(re.findall(r"\$\{(\w+)", (DEPLOY / "compose.yaml").read_text()))
    assert used == set(ENV)
    for name in ENV:
        with pytest.raises(UnsetVariableError, match=name):
            read_compose({**ENV, name: ""})


def test_every_file_of_a_container_exists_or_is_made_by_the_readme() -> None:
    def exists(path: str) -> bool:
        is_made = any(Path(each).is_relative_to(path) for each in MADE)
        return is_made or (DEPLOY / path).is_file()

    for name, service in SERVICES.items():
        for mount in list_mounts(COMPOSE, name):
            found = mount.source in COMPOSE["volumes"] if mount.is_volume else exists(mount.source)
            assert found, (name, mount)
        for file in service.get("env_file", []):
            assert exists(file), (name, file)
    for file in re.findall(r"=/(config/\S+)", " ".join(SERVICES["gateway1"]["command"])):
        assert file in MADE


def test_files_that_the_readme_makes_are_not_committed() -> None:
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    for file in set(MADE) - {"admin.new"}:
        whole = f"deploy/{file}"
        assert any(whole == each or whole.startswith(each) for each in ignored if each), file


CONFIGURED = {  # a configuration file in a container, and the paths in it that must be mounted
    "prometheus": ("prometheus/prometheus.yaml", r"(/[\w./-]+\.yaml|/run/secrets/\w+)"),
    "grafana": ("grafana/provider.yaml", r"path: (/[\w/]+)"),
}


@pytest.mark.parametrize("service", CONFIGURED)
def test_every_path_of_a_configuration_file_is_mounted(service: str) -> None:
    file, pattern = CONFIGURED[service]
    targets = [Path(mount.target) for mount in list_mounts(COMPOSE, service)]
    text = re.sub(r"^#.*$", "", (DEPLOY / file).read_text(), flags=re.MULTILINE)
    named = re.findall(pattern, text)
    assert named
    for path in named:
        assert any(target.is_relative_to(path) for target in targets), path


def test_variables_of_the_proxy_reach_its_container() -> None:
    used = re.findall(r"\{\$(\w+)", (DEPLOY / "Caddyfile").read_text())
    assert used == ["GATEWAY_HOST"]
    assert SERVICES["proxy"]["environment"] == {"GATEWAY_HOST": ENV["GATEWAY_HOST"]}


def list_addresses() -> list[tuple[str, str, int]]:
    """Return each address that a service connects to: the service, the host and the port."""
    found = []
    for name in GATEWAYS:
        text = " ".join([*SERVICES[name]["command"], *SERVICES[name]["environment"].values()])
        for url in re.findall(r"(?:postgresql|redis)://\S+", text):
            parts = urlsplit(url)
            default = 5432 if parts.scheme == "postgresql" else 6379
            found.append((name, str(parts.hostname), parts.port or default))
    caddy = (DEPLOY / "Caddyfile").read_text()
    (port,) = re.findall(r"health_port (\d+)", caddy)
    for host, main_port in re.findall(
        r"(\w+):(\d+)", re.findall(r"reverse_proxy (.*) \{", caddy)[0]
    ):
        found += [("proxy", host, int(main_port)), ("proxy", host, int(port))]
    for job in yaml.safe_load((DEPLOY / "prometheus/prometheus.yaml").read_text())[
        "scrape_configs"
    ]:
        for target in job["static_configs"][0]["targets"]:
            host, _, number = target.partition(":")
            found.append(("prometheus", host, int(number)))
    source = yaml.safe_load((DEPLOY / "grafana/datasource.yaml").read_text())["datasources"][0]
    parts = urlsplit(source["url"])
    return [*found, ("grafana", str(parts.hostname), int(parts.port or 80))]


def test_every_address_is_a_service_of_a_shared_network() -> None:
    addresses = list_addresses()
    assert {service for service, _, _ in addresses} == {
        *GATEWAYS,
        "proxy",
        "prometheus",
        "grafana",
    }
    for service, host, port in addresses:
        assert port in PORTS[host], (service, host, port)
        assert set(SERVICES[service]["networks"]) & set(SERVICES[host]["networks"]), (
            service,
            host,
        )
    for name, service in SERVICES.items():
        assert set(service["networks"]) <= set(COMPOSE["networks"])
        for port in service.get("ports", []):
            assert int(port.split(":")[-1]) in PORTS[name]


VERSION = r":v?\d+\.\d+[\w.]*$|@sha256:[0-9a-f]{64}$"
CHART_VERSION = r":\{\{ \.Values\.image\.tag \| default \.Chart\.AppVersion \}\}$"


def test_every_image_is_named_with_its_version() -> None:
    files = [DEPLOY / "compose.yaml", *CHART.glob("templates/*.yaml")]
    named = [re.findall(r"^ *image: (.+)$", file.read_text(), re.MULTILINE) for file in files]
    images = [each for found in named for each in found]
    assert len(images) == len({service["image"] for service in SERVICES.values()}) + 1
    for image in images:
        assert re.search(f"{VERSION}|{CHART_VERSION}", image), image


def test_images_are_those_of_the_table_of_supported_releases() -> None:
    rows = {row["image"]: row for row in images.read_images()}
    named = {service["image"].partition("@")[0] for service in SERVICES.values()}
    bases = re.findall(r"^ARG PYTHON=([^@\n]*)", DOCKERFILE, re.MULTILINE)
    assert rows.keys() == {each for each in named if not each.startswith("dragoman:")} | {
        f"python:{base}" for base in bases
    }
    for row in rows.values():
        assert row["source"]
        assert row["seen"] >= datetime.date(2026, 1, 1)
    late = datetime.date(2027, 5, 1)
    assert [line.partition(":")[0] for line in images.find_ending([*rows.values()], late)] == [
        "grafana/grafana"
    ]


async def test_script_pins_each_image_to_the_digest_of_its_tag(tmp_path: Path) -> None:
    """A registry is asked twice; the second digest replaces the first."""
    digests = {"sha256:" + "a" * 64: "first", "sha256:" + "b" * 64: "second"}
    asked: list[str] = []

    async def token(request: web.Request) -> web.Response:
        return web.json_response({"token": request.query["scope"]})

    async def manifest(request: web.Request) -> web.Response:
        asked.append(request.path)
        path = request.path.removeprefix("/v2/").partition("/manifests/")[0]
        assert request.headers["Authorization"] == f"Bearer repository:{path}:pull"
        return web.Response(headers={"Docker-Content-Digest": current})

    app = web.Application()
    app.router.add_get("/token", token)
    app.router.add_route("HEAD", "/v2/{path:.*}", manifest)
    files = [tmp_path / path.name for path in images.FILES]
    for file, source in zip(files, images.FILES, strict=True):
        file.write_text(re.sub("@sha256:[0-9a-f]{64}", "", source.read_text()))
    plain = [file.read_text() for file in files]
    async with TestServer(app) as server:
        place = str(server.make_url("")).rstrip("/")
        words = ["--pin", "--registry", place, "--tokens", f"{place}/token", *map(str, files)]
        for current in digests:
            await asyncio.to_thread(images.main, words)
            texts = [file.read_text() for file in files]
            assert sum(text.count(f"@{current}") for text in texts) == len(images.read_images())
            cleaned = [re.sub(f"@{current}", "", text) for text in texts]
            assert cleaned == plain
    assert "/v2/library/redis/manifests/8.8" in asked
    assert "/v2/prom/prometheus/manifests/v3.13.0" in asked


def test_compose_confines_the_gateways() -> None:
    for name in GATEWAYS:
        assert SERVICES[name]["read_only"] is True
        assert SERVICES[name]["cap_drop"] == ["ALL"]
        assert "ports" not in SERVICES[name]
        options = SERVICES[name]["command"]
        limits = [each.partition("=")[2] for each in options if each.startswith("--max-conn")]
        assert len(limits) == 2
        assert limits[0] == limits[1]  # every connection comes from the proxy
    assert SERVICES["grafana"]["environment"]["GF_SECURITY_ADMIN_PASSWORD"]


# --- the chart ---------------------------------------------------------------------------------

EVERYTHING: dict[str, Any] = {
    **example_values(),
    "otel": {"enabled": True, "endpoint": "http://collector:4318"},
    "ingress": {"enabled": True, "host": "llm.example.com", "tlsSecret": "llm-tls"},
    "httpRoute": {
        "enabled": True,
        "gateway": {"name": "public", "namespace": "gateways"},
        "section": "web",
        "hosts": ["llm.example.com"],
    },
}
MINIMAL: dict[str, Any] = {
    "image": {"repository": "registry.example.com/dragoman", "tag": "1.2.3"},
    "stores": {"postgresql": "postgresql://gw@db/gw", "log": False},
    "autoscaling": {"enabled": False},
    "networkPolicy": {"enabled": False},
    "replicas": 3,
    "options": ["--no-access-log"],
}


def by_kind(manifests: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    found = {each["kind"]: each for each in manifests}
    assert len(found) == len(manifests)
    return found


def pod_of(manifests: dict[str, dict[str, Any]]) -> dict[str, Any]:
    spec: dict[str, Any] = manifests["Deployment"]["spec"]["template"]["spec"]
    return spec


def check_command(words: list[str]) -> dict[str, Any]:
    """Parse a command of the gateway; fail if the program has no such option."""
    name, *options = words
    command = main.get_command(click.Context(main), name)
    assert command is not None
    parsed, rest, _ = command.make_parser(click.Context(command)).parse_args(list(options))
    assert rest == []
    assert {"host", "keys", "config", "state", "ready_port"} <= set(parsed)
    return parsed


def test_every_gateway_option_of_the_files_exists() -> None:
    check_command(IMAGE_COMMAND)
    check_command(SERVICES["gateway1"]["command"])
    for values in (EVERYTHING, MINIMAL):
        check_command(pod_of(by_kind(render(values)))["containers"][0]["args"])


def test_references_between_the_manifests_can_be_resolved() -> None:
    found = by_kind(render(EVERYTHING))
    assert set(found) == {
        "Deployment", "Service", "Ingress", "HTTPRoute", "HorizontalPodAutoscaler",
        "PodDisruptionBudget", "NetworkPolicy", "ConfigMap", "PodMonitor", "PrometheusRule",
    }  # fmt: skip
    pod = pod_of(found)
    (container,) = pod_of(found)["containers"]
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    selectors = [
        found["Deployment"]["spec"]["selector"]["matchLabels"],
        found["Service"]["spec"]["selector"],
        found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
        found["PodMonitor"]["spec"]["selector"]["matchLabels"],
        *[each["labelSelector"]["matchLabels"] for each in pod["topologySpreadConstraints"]],
    ]
    assert selectors == [labels] * 7
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        path = "/ready" if probe == "readinessProbe" else "/health"
        assert container[probe]["httpGet"] == {"path": path, "port": "ready"}
    options = check_command(container["args"])
    assert int(options["ready_port"]) == ports["ready"]
    assert found["Service"]["spec"]["ports"][0]["targetPort"] in ports
    assert found["PodMonitor"]["spec"]["podMetricsEndpoints"][0]["port"] in ports
    (allowed,) = found["NetworkPolicy"]["spec"]["ingress"]
    assert {each["port"] for each in allowed["ports"]} == set(ports)
    scaled = found["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert scaled["kind"] == "Deployment"
    assert scaled["name"] == found["Deployment"]["metadata"]["name"]
    (path,) = found["Ingress"]["spec"]["rules"][0]["http"]["paths"]
    service = path["backend"]["service"]
    assert service["name"] == found["Service"]["metadata"]["name"]
    assert service["port"]["name"] == found["Service"]["spec"]["ports"][0]["name"]
    route = found["HTTPRoute"]["spec"]
    assert route["parentRefs"] == [
        {"name": "public", "namespace": "gateways", "sectionName": "web"}
    ]
    assert route["hostnames"] == ["llm.example.com"]
    (rule,) = route["rules"]
    (backend,) = rule["backendRefs"]
    assert backend["name"] == found["Service"]["metadata"]["name"]
    assert backend["port"] == found["Service"]["spec"]["ports"][0]["port"]
    assert rule["timeouts"] == {"request": "15m", "backendRequest": "15m"}
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert {each["name"] for each in container["volumeMounts"]} == set(volumes)
    assert volumes["config"]["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"]
    for option in ("config", "keys", "admin"):
        assert Path(options[option]).name in found["ConfigMap"]["data"]


def test_every_secret_of_the_manifests_is_made_by_the_readme() -> None:
    commands = "\n".join(read_readme("Kubernetes")).replace("\\\n", "")
    made = {
        name: set(re.findall(r"--from-literal=(\w+)=", rest))
        for name, rest in re.findall(r"create secret generic (\S+)(.*)", commands)
    }
    found = by_kind(render(example_values()))
    (container,) = pod_of(found)["containers"]
    (environment,) = [each["secretRef"]["name"] for each in container["envFrom"]]
    monitor = found["PodMonitor"]["spec"]["podMetricsEndpoints"][0]
    credentials = monitor["authorization"]["credentials"]
    assert made == {
        environment: {"PGPASSWORD", "OPENAI_API_KEY"},
        credentials["name"]: {credentials["key"]},
    }
    image = container["image"]
    assert f"docker push {image}" in commands
    assert f"docker build -f deploy/Dockerfile -t {image} ." in commands


def test_files_of_the_config_map_can_be_read_by_the_gateway(tmp_path: Path) -> None:
    data = by_kind(render(example_values()))["ConfigMap"]["data"]
    for name, text in data.items():
        (tmp_path / name).write_text(text)
    assert "fast" in Registry.load(tmp_path / "models.yaml").aliases()
    keys = KeyRing.load(tmp_path / "keys.yaml").keys
    assert [(key.id, key.allows("fast")) for key in keys] == [("ann", True)]


def test_values_of_the_chart_change_the_manifests() -> None:
    found = by_kind(render(MINIMAL))
    assert set(found) == {"Deployment", "Service", "PodDisruptionBudget", "ConfigMap"}
    (container,) = pod_of(found)["containers"]
    options = check_command(container["args"])
    assert found["Deployment"]["spec"]["replicas"] == 3
    assert container["image"] == "registry.example.com/dragoman:1.2.3"
    assert options["keys"] == options["state"] == "postgresql://gw@db/gw"
    assert "log" not in options
    assert "redis" not in options
    assert options["access_log"] is False
    assert "command" not in container
    traced = pod_of(by_kind(render(EVERYTHING)))["containers"][0]
    assert traced["command"] == ["opentelemetry-instrument", "--", "dragoman"]
    assert check_command(traced["args"])["otel"] is True
    assert {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://collector:4318"} in traced[
        "env"
    ]


def test_pods_have_enough_time_to_shut_down_and_write_nothing_but_scratch_folders() -> None:
    pod = pod_of(by_kind(render(MINIMAL)))
    (container,) = pod["containers"]
    options = check_command(container["args"])
    limit = pod["terminationGracePeriodSeconds"]
    assert int(options["drain"]) == 900, "as long as a reply may last"
    assert int(options["drain"]) + int(options["drain_delay"]) < limit
    longer = by_kind(render({**MINIMAL, "drain": 1800}))
    assert pod_of(longer)["terminationGracePeriodSeconds"] - limit == 900
    assert "--drain=1800" in pod_of(longer)["containers"][0]["args"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["securityContext"]["runAsNonRoot"] is True
    written = [each["mountPath"] for each in container["volumeMounts"] if not each.get("readOnly")]
    assert written == ["/tmp", "/state"]


def test_changed_models_do_not_restart_the_pods() -> None:
    models = {"models": {"openai:gpt-6-luna": {"aliases": ["fast"]}}}
    assert (
        by_kind(render(MINIMAL))["Deployment"]
        == (by_kind(render({**MINIMAL, "modelsYaml": models}))["Deployment"])
    )


def test_chart_and_compose_use_the_same_alert_rules() -> None:
    rule = by_kind(render(EVERYTHING))["PrometheusRule"]
    assert rule["spec"] == yaml.safe_load((CHART / "alerts.yaml").read_text())


WRONG: list[tuple[dict[str, Any], str]] = read_table("wrong_deployments")


@pytest.mark.parametrize(("wrong", "named"), WRONG, ids=[named for _, named in WRONG])
def test_wrong_values_are_rejected_with_their_name(wrong: dict[str, Any], named: str) -> None:
    values = {
        **MINIMAL,
        **{
            name: {**MINIMAL.get(name, {}), **each} if isinstance(each, dict) else each
            for name, each in wrong.items()
        },
    }
    done = run_helm("template", "gw", CHART, values=values)
    assert done.returncode != 0
    assert named in done.stderr


def test_chart_passes_helm_lint() -> None:
    done = run_helm("lint", CHART, "--strict", values=EVERYTHING)
    assert done.returncode == 0, done.stdout


# --- figures -----------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["grafana/gateway.json", "helm/dragoman/alerts.yaml"])
def test_dashboard_and_alerts_use_metrics_that_exist(file: str) -> None:
    shown = set(re.findall(r"dragoman_\w+", (DEPLOY / file).read_text()))
    exist = set(re.findall(r"^# TYPE (\w+)", Metrics().text(), re.MULTILINE))
    assert {re.sub("_bucket$", "", name) for name in shown} <= exist
    assert len(shown) >= 2


# --- the registry of agents --------------------------------------------------------------------

# The required fields and their forms in agentclientprotocol/registry, agent.schema.json (2026-08).
MANIFEST: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["id", "name", "version", "description", "license_url", "distribution"],
    "properties": {
        "id": {"pattern": "^[a-z][a-z0-9-]*$"},
        "version": {"pattern": "^[0-9]+\\.[0-9]+\\.[0-9]+$"},
        "license_url": {"pattern": "^https://"},
        "authors": {"type": "array", "items": {"type": "string"}},
        **{
            name: {"type": "string", "minLength": 1} for name in ("name", "description", "license")
        },
        "distribution": {
            "required": ["uvx"],
            "additionalProperties": False,
            "properties": {
                "uvx": {
                    "required": ["package", "cmd", "args"],
                    "additionalProperties": False,
                    "properties": {"package": {}, "cmd": {}, "args": {"type": "array"}},
                }
            },
        },
    },
}


def test_manifest_of_the_agent_starts_the_released_agent() -> None:
    manifest = json.loads((DEPLOY / "acp" / "agent.json").read_text())
    assert first_error(compile_schema(MANIFEST, "the manifest"), manifest) is None
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert manifest["version"] == project["version"]
    assert manifest["license"] == project["license"]
    started = manifest["distribution"]["uvx"]
    name, _, version = started["package"].partition("==")
    extras = re.fullmatch(r"dragoman\[(.*)\]", name)
    assert extras is not None
    assert set(extras[1].split(",")) <= set(project["optional-dependencies"])
    assert version == project["version"]
    assert started["cmd"] in project["scripts"]
    name, *options = started["args"]
    command = main.get_command(click.Context(main), name)
    assert command is not None
    assert set(options) <= {flag for each in command.params for flag in each.opts}
