"""How much the properties try: a fixed sample by default, more on request (``HYPOTHESIS_PROFILE=exhaustive``)."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# Derandomised: a run is red or green by the code alone, on every machine.
settings.register_profile(
    "default", derandomize=True, deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("exhaustive", settings.get_profile("default"), derandomize=False, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
