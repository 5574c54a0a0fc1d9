import pytest

from tests.session.playing import ran


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()
