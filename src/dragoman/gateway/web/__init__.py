"""The web pages of the gateway and of ``dragoman ui``: overview, playground, models, keys, traces.

Box: gateway.

The gateway imports this package when the first page is requested.
"""

from .site import Site

__all__ = ["Site"]
