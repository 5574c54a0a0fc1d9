"""Tool loops of clients of every wire are accepted by models that refuse what vendors refuse.

The vendors' own SDKs run the loops; the model behind the gateway enforces its vendor's rules.
"""

from __future__ import annotations

import os
from itertools import product

import pytest

from dragoman.gateway import create_app
from tests.loops import LOOKS, UPSTREAMS, Upstream, check_returned, serve

from .sdk_loops import LOOPS
from .serving import serving

EXHAUSTIVE = bool(os.environ.get("DRAGOMAN_EXHAUSTIVE"))
# These APIs have no place for state, so their clients cannot return it.
STATELESS = ("cohere", "ollama")


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning")
@pytest.mark.parametrize("upstream", UPSTREAMS, ids=[each.name for each in UPSTREAMS])
async def test_tool_loop_of_each_client_is_accepted_and_its_thinking_comes_back(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_BEARER_TOKEN_BEDROCK", raising=False)
    # Every second client streams; the next model has the others. An exhaustive run does both.
    turn = UPSTREAMS.index(upstream)
    for number, (wire, stream) in enumerate(product(LOOPS, (False, True))):
        if not EXHAUSTIVE and (number // 2 + number + turn) % 2:
            continue
        with serve(upstream, *LOOKS, "Done.") as sim:
            model = sim.connect(upstream.wire, upstream.model, vendor=upstream.vendor)
            async with model, serving(create_app({"m": model})) as url:
                assert await LOOPS[wire](url, stream) == "Done.", (wire, stream)
            assert sim.refused == [], (wire, stream)
            assert len(sim.requests) == 4, (wire, stream)
            check_returned(upstream, sim.requests, keeps_state=wire not in STATELESS)
