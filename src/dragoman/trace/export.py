"""Export a session as one HTML file, which looks like the trace viewer and needs no server.

The file contains its style, its script and its data. Its Content-Security-Policy allows the first
two by their hashes and nothing else, so that session content that looks like markup or script
stays text.
"""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from ..log import EventLog
from .queries import Reader

PAGE = Path(__file__).parent / "page"
STYLE = "trace.css"
SCRIPTS = ("render.js", "timeline.js", "decisions.js", "trace.js")
_POLICY = (
    "default-src 'none'; script-src {script}; style-src {style}; img-src data:; base-uri 'none'; "
    "form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)


def export_html(log: EventLog, session: str) -> str:
    """Return a session as one HTML file; raise ``LookupError`` if the log has no such session.

    Long texts are truncated as on the page: the file is for reading, ``dragoman log export`` for
    archiving.
    """
    data = _read_all(Reader(log), session)
    if not data["steps"]:
        raise LookupError(f"the log has no session {session!r}")
    style = (PAGE / STYLE).read_text("utf-8")
    script = "\n".join([(PAGE / name).read_text("utf-8") for name in SCRIPTS])
    policy = _POLICY.format(script=hash_source(script), style=hash_source(style))
    page = (PAGE / "index.html").read_text("utf-8")
    page = page.replace(f'<link rel="stylesheet" href="{STYLE}">', f"<style>{style}</style>")
    for name in SCRIPTS:
        page = page.replace(f'<script src="{name}" defer></script>\n', "")
    page = page.replace(
        '<meta charset="utf-8">',
        f'<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="{policy}">',
    )
    inline = (
        '<script type="application/json" '
        f'id="data">{_encode(data)}</script>\n<script>{script}</script>\n'
    )
    return page.replace("</body>", f"{inline}</body>")


def _read_all(reader: Reader, session: str) -> dict[str, Any]:
    steps: list[dict[str, Any]] = []
    while found := reader.read_page(session, len(steps))["steps"]:
        steps += found
    return {
        "session": session,
        "steps": steps,
        "totals": reader.count(session),
        "chain": reader.check_chain(session),
        "records": {step["seq"]: reader.read_record(session, step["seq"]) for step in steps},
    }


def _encode(data: Any) -> str:
    """Return data as JSON that cannot end the HTML element that contains it."""
    text = msgspec.json.encode(data).decode()
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def hash_source(text: str) -> str:
    """Return the hash of a style or a script, for the Content-Security-Policy of its page."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
