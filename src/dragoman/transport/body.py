"""Decompress replies in steps and within limits, since a megabyte can expand to a gigabyte."""

from __future__ import annotations

import zlib

from ..errors import InvalidResponseError, without_frames

ACCEPTED = "gzip, deflate"
# The largest allowed ratio of decompressed to compressed size. JSON can reach a ratio of 30.
MAX_RATIO = 100
# The ratio is not checked until this many bytes are decompressed, since short replies vary.
RATIO_FREE = 128 * 1024
_STEP = 64 * 1024
# values of zlib's parameter ``wbits`` for the three formats
_GZIP = 31
_ZLIB = 15
_RAW = -15
# Bytes that may follow raw deflate data: a server that leaves out the header of zlib's format may
# still send its checksum. curl tolerates as many (lib/content_encoding.c, read 2026-11-19).
_RAW_TRAILER = 4
_WINDOWS = {"gzip": _GZIP, "x-gzip": _GZIP, "deflate": _ZLIB}


class Inflater:
    """Decompress one body: call ``feed`` with bytes, then ``read`` until it returns nothing.

    Repeat this for all bytes of the body, and then call ``finish``.
    """

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._window = _WINDOWS.get(encoding, 0)
        self._inflate = zlib.decompressobj(self._window) if self._window else None
        self._trailer = 0
        self._pending = b""
        self._packed = 0
        self._unpacked = 0

    def feed(self, data: bytes) -> None:
        """Add compressed bytes to the input."""
        if self._inflate is None:
            raise InvalidResponseError(
                f"the reply is encoded as {self._encoding[:40]!r}, which was not asked for"
            )
        if not self._packed and self._window == _ZLIB and data[0] & 0x0F != 8:
            # "deflate" stands for the zlib format, but some servers send raw deflate data without
            # a header.
            self._inflate = zlib.decompressobj(_RAW)
            self._trailer = _RAW_TRAILER
        self._packed += len(data)
        self._pending = self._pending + data if self._pending else data

    def read(self) -> bytes:
        """Return some decompressed bytes; return no bytes if more input is needed."""
        inflate = self._inflate
        if inflate is None:
            return b""
        try:
            data = inflate.decompress(self._pending, _STEP)
            self._pending = inflate.unconsumed_tail
            # a gzip body may have several members, decompressed one after the other
            while not data and inflate.eof and inflate.unused_data and self._window == _GZIP:
                pending = inflate.unused_data
                inflate = self._inflate = zlib.decompressobj(_GZIP)
                data = inflate.decompress(pending, _STEP)
                self._pending = inflate.unconsumed_tail
        except zlib.error as error:
            damaged = InvalidResponseError(
                f"the {self._encoding} compression of the reply is damaged"
            )
            raise damaged from without_frames(error)
        if self._window == _ZLIB and len(inflate.unused_data) > self._trailer:
            raise InvalidResponseError(
                f"bytes follow the end of the {self._encoding} compression of the reply"
            )
        self._unpacked += len(data)
        if self._unpacked > MAX_RATIO * self._packed + RATIO_FREE:
            raise InvalidResponseError(
                f"the reply has more than {MAX_RATIO} times its compressed size"
            )
        return data

    def finish(self) -> None:
        """Check that the compressed data is complete; an empty body counts as complete."""
        if self._packed and self._inflate is not None and not self._inflate.eof:
            raise InvalidResponseError(
                f"the {self._encoding} compression of the reply ends too early"
            )
