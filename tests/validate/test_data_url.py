"""Test parsing ``data:`` URLs."""

import pytest

from dragoman.validate.data_url import read_data_url

DATA_URLS = [
    ("data:image/png;base64,aGk=", False, ("image/png", "aGk=")),
    ("DATA:image/png;BASE64,aGk%3D", False, ("image/png", "aGk=")),
    ("data:text/plain;charset=utf-8;base64,aGk=", False, ("text/plain", "aGk=")),
    ("data:;base64,aGk=", False, (None, "aGk=")),
    ("data:text/plain,h%69", False, None),
    ("data:text/plain,h%69", True, ("text/plain", "aGk=")),
    ("data:,hi", True, (None, "aGk=")),
    ("data:image/png", True, None),
    ("https://a.test/b.png", True, None),
]


@pytest.mark.parametrize(("url", "percent_encoded", "expected"), DATA_URLS)
def test_data_urls_are_parsed(url: str, percent_encoded: bool, expected: object) -> None:
    assert read_data_url(url, percent_encoded=percent_encoded) == expected
