"""The functions of other libraries, with Dragoman's models behind them.

Box: extras.
"""

from __future__ import annotations

__all__: list[str] = []
