"""Write the results as a Markdown table and as an SVG chart."""

from __future__ import annotations

import json
import math
import os
import platform
import re
from html import escape
from pathlib import Path
from typing import Any

# The performance targets. Each entry: the case, the client to compare with, and the maximum ratio
# of our cost to the cost of that client.
PROMISES = [
    ("complete, text", "floor", 0.85),
    ("complete, 64 at once", "floor", 0.85),
    ("stream, a chunk, coalesced", "floor", 1.45),
    ("stream, a chunk, one per write", "floor", 1.25),
    ("complete over TLS", "floor", 0.85),
    ("complete, text", "openai", 1 / 10),
    ("complete, text", "litellm", 1 / 25),
    ("stream, a chunk, coalesced", "openai", 1 / 20),
    ("stream, a chunk, coalesced", "litellm", 1 / 70),
]
# The maximum ratios of our figures to those of the minimal client: the memory of an open stream,
# and the CPU time of the import and of the first call.
MEMORY = 0.5
STARTING = 0.5
# The maximum ratios of the CPU time of an import to that of another library.
IMPORTS = [
    ("import dragoman", "openai", 1 / 10),
    ("import dragoman", "litellm", 1 / 50),
    ("from dragoman import connect", "openai", 1 / 4),
    ("from dragoman import connect", "litellm", 1 / 20),
]
# The maximum ratios of the CPU time of a complete call through the gateway, and for which cases.
GATEWAY = [
    ("gateway / relay", "hand-written relay", 1.4),
    ("gateway / litellm", "LiteLLM's proxy", 1 / 30),
]
AT_A_TIME = {"complete": "4 clients", "complete, 32 at a time": "32 clients"}


def table(results: dict[str, Any]) -> str:
    lines = [
        (
            "The tables of this section show CPU µs, and multiples of the floor (aiohttp + msgspec by"
            f" hand); they were measured on {results['machine']}, in {results['rounds']} rounds."
        ),
        "",
    ]
    for wire in ("openai", "anthropic"):
        lines += [f"### The {wire} wire", "", *_cases(results[wire]), ""]
    lines += ["### What was promised", "", *_promises(results), ""]
    lines += [
        "### The parts by themselves",
        "",
        "| part | CPU µs | msgspec alone |",
        "|---|---|---|",
    ]
    for name, row in results["micro"].items():
        alone = "–" if row["msgspec_us"] is None else f"{row['msgspec_us']:.2f}"
        lines.append(f"| {name} | {row['us']:.2f} | {alone} |")
    lines += [
        "",
        "### Memory of a stream of 10,000 chunks, of many at once, in KiB",
        "",
        *_memory(results["memory"]),
    ]
    lines += ["", "### Importing", "", "| | CPU ms | modules |", "|---|---|---|"]
    lines += [
        f"| {name} | {row['ms']:.0f} | {row['modules']} |"
        for name, row in results["imports"].items()
    ]
    if results.get("gateway"):
        lines += ["", "### The gateway", "", list_gateway(results["gateway"])]
    if results["skipped"]:
        lines += [
            "",
            "Left out:",
            *[f"- {name}: {why}" for name, why in results["skipped"].items()],
        ]
    return "\n".join(lines)


_SERVERS = {"relay": "relay", "gateway": "gateway", "litellm": "LiteLLM's proxy"}
_GATEWAY_CASES = {
    "complete": "a complete reply, 4 clients",
    "complete, 32 at a time": "a complete reply, 32 clients",
    "stream, a chunk at a time": "a chunk in its own read",
    "stream, coalesced": "a chunk among many in one read",
}


def list_gateway(written: str) -> str:
    """Return the results of ``bench.gateway`` as a table of the CPU time of each server."""
    if not written.startswith("{"):  # the reason of a failure
        return written.strip()
    found = json.loads(written)
    servers = [name for name in _SERVERS if f"{name}, µs" in found["complete"]]
    lines = [
        "| CPU, µs | " + " | ".join([_SERVERS[name] for name in servers]) + " |",
        "|---" * (len(servers) + 1) + "|",
    ]
    for case, shown in _GATEWAY_CASES.items():
        cells = [f"{found[case][f'{name}, µs']:,.10g}" for name in servers]
        lines.append(f"| {shown} | " + " | ".join(cells) + " |")
    held = found["many streams"]
    lines += [
        "",
        (
            f"One worker served {held['streams at once']:,} concurrent streams, of which"
            f" {held['failed']} failed; each took {held['KiB a stream beyond it']:.0f} KiB more"
            " memory than in the client library alone."
        ),
    ]
    return "\n".join(lines)


CLAIMS = ("docs/index.md", "docs/performance.md")  # pages with a comparison


def renew_claims(root: Path, results: dict[str, Any]) -> None:
    """Write the figures of the comparisons in the documentation."""
    calls, chunks = [
        results["openai"][case] for case in ("complete, text", "stream, a chunk, coalesced")
    ]
    imports = results["imports"]
    # ``import dragoman`` loads a part only; the others are loaded with the first ``connect``
    alone = {**imports, "dragoman": imports["import dragoman"]}
    ready = {**imports, "dragoman": imports["from dragoman import connect"]}
    rows: dict[str, list[str]] = {}
    for name in ("dragoman", "litellm", "pydantic-ai"):
        if name not in calls or name not in imports:
            return
        for row, cell in (
            ("CPU of a call", f"{calls[name]['us'] / 1000:.2g} ms"),
            ("CPU of a streamed chunk", f"{chunks[name]['us']:.0f} µs"),
            ("import, ready to connect", f"{ready[name]['ms']:,.0f} ms"),
            ("import alone", f"{alone[name]['ms']:,.0f} ms"),
        ):
            rows.setdefault(row, []).append(cell)
    for page in [root / name for name in CLAIMS]:
        text = page.read_text()
        for row, cells in rows.items():
            text = _replace(
                rf"^\| {row} \|(?: [^|\n]* \|){{3}}", f"| {row} | {' | '.join(cells)} |", text
            )
        page.write_text(text)


def _replace(pattern: str, line: str, text: str) -> str:
    replaced, count = re.subn(pattern, lambda _: line, text, flags=re.MULTILINE)
    if count != 1:
        raise ValueError(f"{pattern} must match one line, not {count}")
    return replaced


def renew(page: Path, written: str, command: str = "make bench") -> None:
    """Write a table to a page, between the two comments that mark where the results of a command
    belong.
    """
    opening, closing = [f"<!-- what {command} found: {mark} -->" for mark in ("begin", "end")]
    text = page.read_text()
    if text.count(opening) != 1 or text.count(closing) != 1:
        raise ValueError(f"{page} must have {opening} and {closing} once")
    begin, _, rest = text.partition(opening)
    _, _, end = rest.partition(closing)
    page.write_text(f"{begin}{opening}\n\n{written}\n\n{closing}{end}")


def describe_machine() -> dict[str, Any]:
    """Return a description of the machine and its load before the run."""
    cores = os.cpu_count()
    python = platform.python_version()
    return {
        "machine": f"{platform.machine()}, {cores} cores, Python {python}",
        "load before the run": round(os.getloadavg()[0], 1),
    }


def list_figures(found: dict[str, Any]) -> str:
    """Return figures as a Markdown table of two columns."""
    rows = [
        f"| {name} | {' and '.join(map(str, each)) if isinstance(each, list) else each} |"
        for name, each in found.items()
    ]
    return "\n".join(["| | |", "|---|---|", *rows])


def _cases(cases: dict[str, Any]) -> list[str]:
    clients = list(dict.fromkeys([name for row in cases.values() for name in row]))
    clients.sort(key=lambda name: cases["complete, text"].get(name, {"us": math.inf})["us"])
    lines = ["| | " + " | ".join(clients) + " |", "|---" * (len(clients) + 1) + "|"]
    for case, row in cases.items():
        cells = [
            f"{row[name]['us']:,.1f} ({row[name]['ratio']:.2f}×)" if name in row else "–"
            for name in clients
        ]
        lines.append(f"| {case} | " + " | ".join(cells) + " |")
    return lines


def _promises(results: dict[str, Any]) -> list[str]:
    lines = ["| case | compared with | at most | now | met |", "|---|---|---|---|---|"]
    for case, client, most in PROMISES:
        row = results["openai"].get(case, {})
        if client in row and "dragoman" in row:
            now = row["dragoman"]["ratio"] / row[client]["ratio"]
            kept = "yes" if now <= most else "**no**"
            lines.append(f"| {case} | {client} | {_share(most)} | {_share(now)} | {kept} |")
    memory = results["memory"]
    imports = results["imports"]
    others = [("KiB of an open stream", memory, "lean", "floor", "grown", MEMORY)]
    others += [
        (
            "import and first call, CPU ms",
            imports,
            "dragoman, first call",
            "floor, first call",
            "ms",
            STARTING,
        )
    ]
    for case, rows, ours, theirs, unit, most in others:
        if ours in rows and theirs in rows:
            now = rows[ours][unit] / rows[theirs][unit]
            lines.append(
                f"| {case} | floor | {_share(most)} | {_share(now)} | "
                f"{'yes' if now <= most else '**no**'} |"
            )
    for statement, client, most in IMPORTS:
        if client in imports:
            now = imports[statement]["ms"] / imports[client]["ms"]
            kept = "yes" if now <= most else "**no**"
            lines.append(f"| `{statement}` | {client} | {_share(most)} | {_share(now)} | {kept} |")
    text = results.get("gateway", "")
    found = json.loads(text) if text.startswith("{") else {}  # otherwise the reason of a failure
    for name, other, most in GATEWAY:
        for case, clients in AT_A_TIME.items():
            now = found.get(case, {}).get(name)
            if now is not None:
                kept = "yes" if now <= most else "**no**"
                lines.append(
                    f"| gateway, {clients} | {other} | {_share(most)} | {_share(now)} | {kept} |"
                )
    return lines


_HELD = {
    "connection": "the connection alone",
    "lean": "`keep_raw=False`",
    "raw": "`keep_raw=True`",
    "floor": "floor, which keeps nothing",
}


def _memory(rows: dict[str, Any]) -> list[str]:
    head = (
        "| | grown | of it text | raw | beyond these and the connection | grown after as many "
        "short ones |"
    )
    lines = [head, "|---|---|---|---|---|---|"]
    for mode, row in rows.items():
        cells = [
            f"{row[key]:.0f}" if row.get(key) else "–"
            for key in ("grown", "text", "raw", "beyond", "later")
        ]
        lines.append(f"| {_HELD[mode]} | " + " | ".join(cells) + " |")
    return lines


def _share(ratio: float) -> str:
    return f"{ratio:.2f}×" if ratio >= 0.2 else f"1/{1 / ratio:.0f}"


# --- drawing the bar chart ---------------------------------------------------------------------

_WIDTH = 720
_ROW = 22
_LEFT = 120
_TOP = 46
_PANELS = [("complete, text", "one call"), ("stream, a chunk, coalesced", "one chunk of a stream")]


def plot(results: dict[str, Any], path: Path) -> None:
    """Draw bars on a logarithmic scale: the CPU time of each client divided by that of the floor."""
    parts: list[str] = []
    y = 0
    for case, title in _PANELS:
        row = results["openai"][case]
        bars = sorted([(cell["ratio"], name) for name, cell in row.items()])
        parts += _panel(title, bars, y)
        y += _TOP + _ROW * len(bars) + 34
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" role="img" '
        'font-family="system-ui, sans-serif" font-size="13">'
        "<title>CPU time beside a client written by hand with aiohttp and msgspec</title>"
        "<style>text{fill:#333}.g{stroke:#ccc}.b{fill:#9aa5b1}.us{fill:#0b6e4f}"
        "@media(prefers-color-scheme:dark){text{fill:#ddd}.g{stroke:#444}.us{fill:#3fb68b}}</style>"
        f"{''.join(parts)}</svg>\n"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(svg)


def _panel(title: str, bars: list[tuple[float, str]], top: int) -> list[str]:
    low = math.log10(0.1)
    high = math.log10(max(200.0, bars[-1][0] * 1.2))
    scale = (_WIDTH - _LEFT - 70) / (high - low)

    def x(ratio: float) -> float:
        return round(_LEFT + (math.log10(ratio) - low) * scale, 1)

    bottom = top + _TOP + _ROW * len(bars)
    parts = [
        f'<text x="0" y="{top + 20}" font-weight="600">CPU of {escape(title)}, × the floor</text>'
    ]
    for tick in (0.1, 1, 10, 100):
        parts.append(
            f'<line class="g" x1="{x(tick)}" x2="{x(tick)}" y1="{top + 34}" y2="{bottom}"/>'
        )
        parts.append(
            f'<text x="{x(tick)}" y="{bottom + 16}" text-anchor="middle" '
            f'font-size="11">{tick:g}×</text>'
        )
    for at, (ratio, name) in enumerate(bars):
        y = top + _TOP + _ROW * at
        kind = "us" if name == "dragoman" else "b"
        end = x(ratio)
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 10}" text-anchor="end">{escape(name)}</text>')
        parts.append(
            f'<rect class="{kind}" x="{_LEFT}" y="{y}" width="{end - _LEFT:.1f}" height="14" '
            'rx="2"/>'
        )
        parts.append(f'<text x="{end + 6}" y="{y + 11}" font-size="11">{ratio:.3g}×</text>')
    return parts
