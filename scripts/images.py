"""List the images of ``deploy`` whose support ends soon, or pin them to today's digests.

``python -m scripts.images`` reads ``deploy/images.yaml``; ``--pin`` asks each registry for the digest
of each tag, and writes it into the files that name the image.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import sys
import urllib.request
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
FILES = (ROOT / "deploy" / "compose.yaml", ROOT / "deploy" / "Dockerfile")
SOON = datetime.timedelta(days=60)
REGISTRY = "https://registry-1.docker.io"
TOKENS = "https://auth.docker.io/token"
ACCEPTED = "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json"


def read_images() -> list[dict[str, Any]]:
    """Return the rows of ``deploy/images.yaml``."""
    rows: list[dict[str, Any]] = yaml.safe_load((ROOT / "deploy" / "images.yaml").read_text())
    return rows


def find_ending(rows: list[dict[str, Any]], today: datetime.date) -> list[str]:
    """Return a line for each image whose support ends soon, or has ended."""
    ending = [row for row in rows if "until" in row and row["until"] - SOON <= today]
    return [f"{row['image']}: supported until {row['until']} ({row['source']})" for row in ending]


def find_digest(image: str, registry: str = REGISTRY, tokens: str = TOKENS) -> str:
    """Return the digest that a registry has for a tag."""
    name, _, tag = image.partition(":")
    path = name if "/" in name else f"library/{name}"
    scope = f"{tokens}?service=registry.docker.io&scope=repository:{path}:pull"
    with urllib.request.urlopen(scope, timeout=30) as reply:
        token = json.load(reply)["token"]
    headers = {"Authorization": f"Bearer {token}", "Accept": ACCEPTED}
    request = urllib.request.Request(
        f"{registry}/v2/{path}/manifests/{tag}", headers=headers, method="HEAD"
    )
    with urllib.request.urlopen(request, timeout=30) as reply:
        digest = str(reply.headers["Docker-Content-Digest"])
    if not re.fullmatch("sha256:[0-9a-f]{64}", digest):
        raise ValueError(f"{image}: the registry has no digest but {digest!r}")
    return digest


def pin(text: str, image: str, digest: str) -> str:
    """Return a file with the digest after each mention of the image, in place of an earlier one."""
    # The Dockerfile names the tag of its base image alone.
    tag = image.partition(":")[2]
    for named in (f"image: {image}", f"ARG PYTHON={tag}"):
        text = re.sub(rf"(?m)^( *{re.escape(named)})(@sha256:\w+)?$", rf"\1@{digest}", text)
    return text


def main(arguments: list[str]) -> int:
    """List, or pin; return 1 if the support of an image ends soon."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pin", action="store_true", help="write today's digests into the files")
    parser.add_argument("--registry", default=REGISTRY)
    parser.add_argument("--tokens", default=TOKENS)
    parser.add_argument("files", nargs="*", type=Path, default=list(FILES))
    given = parser.parse_args(arguments)
    rows = read_images()
    for row in rows if given.pin else ():
        digest = find_digest(row["image"], given.registry, given.tokens)
        for file in given.files:
            file.write_text(pin(file.read_text(), row["image"], digest))
        print(f"{row['image']}@{digest}")
    ending = find_ending(rows, datetime.datetime.now(tz=datetime.UTC).date())
    print("\n".join(ending) or "no image ends soon")
    return 1 if ending else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
