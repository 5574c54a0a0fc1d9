"""Load: latency and throughput of three gateways in front of one mock, measured by AIPerf."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from bench import environments, gateway, server
from bench.report import describe_machine

from .board import Board
from .install import PYTHON_PACKAGES, install_node, install_python, node, node_version

TITLE = "Load"
ABOUT = """\
Requests through a gateway to a mock server, on one machine, sent by AIPerf. `direct` is the mock without a gateway. Streams
have 500 chunks; replies are short texts. Times are in milliseconds. The load generator uses the same processors, so compare
the rows with each other; `CPU` is what the gateway, a single process, used for a request. A cell fails if a request fails;
the figures are measured, not compared, and no text is. So the only damage to notice is a request that is not answered."""
# the model, how many requests are measured, and how many of them at a time
CASES = {"stream": ("paced", 80, 8), "reply": ("text", 800, 16)}
COLUMNS = {
    "stream": ("requests/s", "TTFT p50", "TTFT p99", "ITL p50", "ITL p99", "CPU"),
    "reply": ("requests/s", "latency p50", "latency p99", "CPU"),
}
NOWHERE = "nowhere"
"""A path that no gateway serves, so that each request is answered with status 404."""
EXPECTED = {
    ("portkey", "stream"): "Portkey's gateway answers each streamed request with status 500: "
    "it changes the headers of Node's `fetch`, which are immutable",
}
_METRICS = {
    "TTFT": "time_to_first_token",
    "ITL": "inter_token_latency",
    "latency": "request_latency",
}
# AIPerf loads a tokenizer although the mock reports its tokens, and its own one is fetched from
# the network. This one has a token for each byte.
_TOKENIZER = """
import json, pathlib, sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
folder = pathlib.Path(sys.argv[1])
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
made = Tokenizer(models.BPE(vocab={letter: at for at, letter in enumerate(letters)}, merges=[]))
made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
made.decoder = decoders.ByteLevel()
made.save(str(folder / "tokenizer.json"))
settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 100000}
(folder / "tokenizer_config.json").write_text(json.dumps(settings))
"""


def run() -> Board:
    """Measure each server with each kind of request; a cell fails if a request fails."""
    aiperf = install_python("aiperf")
    install_node()
    litellm, missing = environments.prepare("litellm-proxy")
    versions = {
        "aiperf": PYTHON_PACKAGES["aiperf"],
        "@portkey-ai/gateway": node_version("@portkey-ai/gateway"),
    }
    if litellm is not None:
        versions["litellm"] = environments.version(litellm, "litellm")
    board = Board("load", TITLE, ABOUT, versions, expected=EXPECTED)
    lines: dict[str, list[str]] = {case: [] for case in CASES}
    machine = describe_machine()
    with server.running() as base, tempfile.TemporaryDirectory() as folder:
        subprocess.run([aiperf, "-c", _TOKENIZER, folder], check=True)
        for name in ("direct", "dragoman", "portkey", "litellm"):
            if name == "litellm" and litellm is None:
                board.cells[name, "installed"] = str(missing)
                continue
            with _serving(name, base, litellm) as (url, process):
                for case in CASES:
                    headers = _headers(name, base, CASES[case][0])
                    address = url or f"{base}/{CASES[case][0]}"
                    found = _measure(aiperf, Path(folder), address, case, headers, process)
                    problem = found.pop("problem", "")
                    board.cells[name, case] = problem and f"{name}: {problem}"
                    shown = [found[column] for column in COLUMNS[case]]
                    lines[case].append(f"| {name} | {' | '.join(shown)} |")
        with _serving("dragoman", base, None) as (url, _):
            refused = _measure(aiperf, Path(folder), f"{url}/{NOWHERE}", "reply", [], None)
        board.controls["requests answered with status 404"] = (int("problem" in refused), 1)
    tables = []
    for case, (_, _, together) in CASES.items():
        head = f"| {case}, {together} at a time | {' | '.join(COLUMNS[case])} |"
        rule = "|---" * (len(COLUMNS[case]) + 1) + "|"
        tables.append("\n".join([head, rule, *lines[case]]))
    other = machine["load before the run"]
    tables.append(f"The machine ({machine['machine']}) had a load of {other} before the run.")
    board.counts = "\n\n".join(tables)
    return board


@contextmanager
def _serving(
    name: str, base: str, litellm: str | None
) -> Iterator[tuple[str, psutil.Process | None]]:
    if name == "direct":
        yield "", None
    elif name == "portkey":
        with gateway.started(_start_portkey) as served:
            yield served
    else:
        python = litellm if name == "litellm" else None
        with gateway.serving("gateway", base, python) as served:
            yield served


def _start_portkey(port: int) -> subprocess.Popen[bytes]:
    home = install_node() / "node_modules" / "@portkey-ai" / "gateway" / "build"
    command = [node(), str(home / "start-server.js"), f"--port={port}", "--headless"]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, stdout=quiet, stderr=quiet, env=gateway.environment())


def _headers(name: str, base: str, kind: str) -> list[str]:
    """Return the headers that name the upstream, where the gateway needs them."""
    if name != "portkey":
        return []
    return ["x-portkey-provider:openai", f"x-portkey-custom-host:{base}/{kind}/v1"]


def _measure(
    aiperf: str, folder: Path, url: str, case: str, headers: list[str],
    process: psutil.Process | None,
) -> dict[str, str]:  # fmt: skip
    kind, count, together = CASES[case]
    out = Path(tempfile.mkdtemp(dir=folder))
    command = [
        str(Path(aiperf).with_name("aiperf")), "profile", "--model", kind, "--url", url,
        "--endpoint-type", "chat", "--concurrency", str(together), "--request-count", str(count),
        "--num-warmup-requests", "20", "--synthetic-input-tokens-mean", "20", "--ui", "none",
        "--tokenizer", str(folder), "--use-server-token-count", "--api-key", gateway.KEY,
        "--output-artifact-dir", str(out), *(["--streaming"] if case == "stream" else []),
    ]  # fmt: skip
    for header in headers:
        command += ["--header", header]
    used = gateway.cpu_of(process) if process else 0.0
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    report = out / "profile_export_aiperf.json"
    if done.returncode or not report.exists():
        return dict.fromkeys(COLUMNS[case], "") | {"problem": f"no {case} is answered"}
    found: dict[str, Any] = json.loads(report.read_text())
    shown = {"requests/s": f"{found['request_throughput']['avg']:.1f}", "CPU": ""}
    for column in COLUMNS[case]:
        metric, _, percentile = column.partition(" ")
        if metric in _METRICS:
            shown[column] = f"{found[_METRICS[metric]][percentile]:.1f}"
    if process:
        spent = (gateway.cpu_of(process) - used) / (count + 20) * 1000
        shown["CPU"] = f"{spent:.1f}"
    failed = found.get("error_request_count", {}).get("avg", 0)
    return shown | ({"problem": f"{failed:.0f} of {count} requests failed"} if failed else {})
