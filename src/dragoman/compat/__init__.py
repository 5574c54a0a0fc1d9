"""The functions of other libraries, with Dragoman's models behind them."""

from __future__ import annotations

__all__: list[str] = []
