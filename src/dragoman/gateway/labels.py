"""The labels by which a request is billed: the tag, and the user if its key may name one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..errors import InvalidRequestError
from .keys import check_label
from .request_account import Account

TAG_HEADER = "x-dragoman-tag"
TAG_FIELD = "dragoman_tag"
"""The field of ``metadata`` with the tag, for clients that cannot set a header."""
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,63}")


def read_tag_header(account: Account, headers: Mapping[str, str]) -> None:
    """Note the tag in the headers of a request; reject one that is too long or has other letters."""
    if TAG_HEADER in headers:
        account.tag = _check_tag(TAG_HEADER, headers[TAG_HEADER])


def read_labels(account: Account, fields: dict[str, Any]) -> dict[str, Any]:
    """Note the tag and the user in the body of a request; return the body without the tag.

    A tag in the header takes precedence. Some vendors reject unknown fields of ``metadata``.
    """
    metadata = fields.get("metadata")
    if not isinstance(metadata, dict):
        metadata = {}
    if TAG_FIELD in metadata:
        tag = _check_tag(f"metadata.{TAG_FIELD}", metadata.pop(TAG_FIELD))
        account.tag = account.tag or tag
        if not metadata:
            del fields["metadata"]
    key = account.caller.key
    if key is not None and key.names_user:
        account.user = _check_user(fields.get("user", metadata.get("user_id", "")))
    return fields


def write_tag(account: Account, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body with the tag that ``read_labels`` took from it, for another request."""
    if not account.tag or TAG_HEADER in account.caller.headers:
        return dict(fields)
    return {**fields, "metadata": {**fields.get("metadata", {}), TAG_FIELD: account.tag}}


def _check_user(user: object) -> str:
    if user is None or user == "":
        return ""
    try:
        if not isinstance(user, str):
            raise ValueError("must be a string")
        check_label(user)
    except ValueError as error:
        raise InvalidRequestError(f"user: {error}") from None
    return user


def _check_tag(path: str, tag: object) -> str:
    if not isinstance(tag, str) or _TAG.fullmatch(tag) is None:
        raise InvalidRequestError(
            f"{path}: must be 1 to 64 letters, digits and . _ : / @ + -, and begin with a letter "
            "or a digit"
        )
    return tag
