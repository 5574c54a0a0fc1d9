"""A mark for tests that need a sandbox, which not every machine has."""

import pytest

from dragoman.tools import find_sandbox

needs_sandbox = pytest.mark.skipif(
    find_sandbox().program is None, reason=find_sandbox().reason.partition(":")[0]
)
