"""Base URLs of servers, and media inside data: URLs."""

import pytest

from dragoman.capabilities import Capabilities
from dragoman.transport.connect import is_loopback
from dragoman.wire import CODECS
from dragoman.wire.urls import join_url, root_of
from tests.rows import read_table

from .cases import plain_request

JOINED = read_table("joined_urls")


@pytest.mark.parametrize(("base", "url"), JOINED)
def test_base_urls_are_joined_with_paths(base: str, url: str) -> None:
    assert join_url(base, "/chat", "/v1") == url


@pytest.mark.parametrize(
    ("wire", "base", "url"), read_table("requests_are_sent_by_post_to_the_path_of_their_wire")
)
def test_requests_are_sent_by_post_to_the_path_of_their_wire(
    wire: str, base: str, url: str
) -> None:
    codec = CODECS[wire].connect("m", base, None, Capabilities())
    http = codec.encode(plain_request(stream=False)).http
    assert http.method == "POST"
    assert http.url == url
    assert not any("authorization" in name.lower() for name in http.headers)


@pytest.mark.parametrize("wire", sorted(CODECS))
def test_every_wire_rejects_an_invalid_base_url(wire: str) -> None:
    with pytest.raises(ValueError, match="base_url"):
        CODECS[wire].connect("m", "ftp://h", None, Capabilities())


def test_url_join_works_without_a_default_path() -> None:
    assert join_url("https://x.example", "/health") == "https://x.example/health"


REFUSED = read_table("rejected_urls")


@pytest.mark.parametrize(("base", "message"), REFUSED)
def test_invalid_base_urls_are_rejected(base: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        join_url(base, "/chat", "/v1")
    assert str(caught.value) == message
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(("base", "root"), read_table("roots_of_urls"))
def test_root_of_a_base_url_is_found(base: str, root: str) -> None:
    assert root_of(base) == root


@pytest.mark.parametrize(
    "url",
    [
        "http://x\r\n/v1",
        "http://x/v1\n",
        " http://x",
        "http://x /v1",
        "http://x\x00",
        "http://x/\x7f",
    ],
)
def test_spaces_and_control_characters_in_a_base_url_are_rejected(url: str) -> None:
    with pytest.raises(ValueError, match="must not contain spaces or control characters"):
        join_url(url, "/chat")


@pytest.mark.parametrize(("host", "is_here"), read_table("loopback_hosts_are_recognised"))
def test_loopback_hosts_are_recognised(host: str, is_here: bool) -> None:
    assert is_loopback(host) is is_here
