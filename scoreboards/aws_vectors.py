"""Print botocore's vectors of event streams, and its signatures of AWS's requests, as JSON.

Run by the interpreter that has botocore installed: ``python aws_vectors.py SOURCE TIME``.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any
from unittest import mock


def read_streams(source: Path) -> list[dict[str, Any]]:
    """Return the messages of botocore's unit tests: bytes, payload and whether they are valid."""
    for name in ("tests", "pytest"):  # its tests import both, and the vectors need neither
        fake: Any = types.ModuleType(name)
        fake.mock = mock
        fake.mark = fake.fixture = mock.MagicMock()
        sys.modules[name] = fake
    path = source / "tests" / "unit" / "test_eventstream.py"
    spec = importlib.util.spec_from_file_location("vectors", path)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = [
        {"data": data, "payload": message.payload, "headers": sorted(message.headers)}
        for data, message in module.POSITIVE_CASES
    ]
    found += [{"data": data, "error": error.__name__} for data, error in module.NEGATIVE_CASES]
    for each in found:
        for name in ("data", "payload"):
            if name in each:
                each[name] = base64.b64encode(each[name]).decode()
    return found


def read_requests(source: Path) -> list[dict[str, Any]]:
    """Return the requests of AWS's suite for signatures, as botocore ships it."""
    suite = source / "tests" / "unit" / "auth" / "aws4_testsuite"
    found = []
    for path in sorted(suite.rglob("*.req")):
        head, _, body = path.read_bytes().partition(b"\n\n")
        lines = head.decode().split("\n")
        method, rest = lines[0].split(" ", 1)
        if method not in ("GET", "POST"):
            continue
        kinds = [
            line.split(":", 1)[1].strip()
            for line in lines[1:]
            if line.lower().startswith("content-type:")
        ]
        name = path.parent.relative_to(suite).as_posix()
        found.append(
            {
                "name": name,
                "method": method,
                "url": "https://example.amazonaws.com" + rest.rsplit(" ", 1)[0],
                "headers": {"content-type": kinds[0]} if kinds else {},
                "body": body.decode(),
                "token": "token" if "token" in name else None,
            }
        )
    return found


def sign(request: dict[str, Any], now: datetime.datetime) -> str:
    """Return the Authorization header that botocore writes for a request."""
    import botocore.auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    body = request["body"].encode()
    headers = {**request["headers"], "x-amz-content-sha256": hashlib.sha256(body).hexdigest()}
    made = AWSRequest(method=request["method"], url=request["url"], headers=headers, data=body)
    made.context["timestamp"] = now.strftime("%Y%m%dT%H%M%SZ")
    made.context["payload_signing_enabled"] = True
    keys = Credentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", request["token"])
    clock = mock.Mock(return_value=now.replace(tzinfo=None))
    with mock.patch.object(botocore.auth, "get_current_datetime", clock, create=True):
        botocore.auth.SigV4Auth(keys, "service", "us-east-1").add_auth(made)
    return str(made.headers["Authorization"])


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    moment = datetime.datetime.fromtimestamp(int(sys.argv[2]), datetime.UTC)
    requests = read_requests(folder)
    for each in requests:
        each["authorization"] = sign(each, moment)
    print(json.dumps({"streams": read_streams(folder), "requests": requests}))
