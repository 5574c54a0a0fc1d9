"""Each finish reason of a wire is decoded from a reply written by hand, independently of
recordings.
"""

import json

import pytest

from dragoman.capabilities import Capabilities
from dragoman.wire import CODECS
from dragoman.wire.finish import READ
from tests.rows import read_table

from .cases import BASE_URL, MODEL, DecodedReply, decode, plain_request
from .replies import Call, reply

ENDS: dict[str, dict[str, str]] = dict(read_table("finish_reasons"))


def hear(wire: str, word: str, *calls: Call) -> DecodedReply:
    codec = CODECS[wire].connect(MODEL, BASE_URL, None, Capabilities())
    body = json.dumps(reply(wire, "Hi", *calls, finish=word)).encode()
    return decode(codec, plain_request(stream=False), [body], judged=False)


@pytest.mark.parametrize("wire", sorted(CODECS))
def test_finish_reasons_of_each_wire_are_read(wire: str) -> None:
    assert READ[wire] == ENDS[wire]
    for word, reason in ENDS[wire].items():
        heard = hear(wire, word, *([("c", "f", {})] if reason == "tool_calls" else []))
        found = heard.response or (heard.error.response if heard.error is not None else None)
        assert found is not None, word
        assert (found.text, found.finish_reason) == ("Hi", reason), word


@pytest.mark.parametrize("wire", sorted(CODECS))
def test_unknown_finish_reason_is_an_error_without_an_exception(wire: str) -> None:
    heard = hear(wire, "NOT_INVENTED_YET")
    assert heard.error is None
    assert heard.response is not None
    found = (heard.response.text, heard.response.finish_reason, heard.response.finish_raw)
    assert found == ("Hi", "error", "NOT_INVENTED_YET")
