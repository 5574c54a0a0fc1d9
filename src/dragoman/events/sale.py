"""What a reply cost: its price, which is looked up only when the cost is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from importlib import import_module
from typing import Any, ClassVar, Protocol

from msgspec import Struct


class Sale:
    """The price of a call. ``find`` looks it up only when the cost is computed.

    The price is not part of a reply's JSON, because msgspec treats this class, like ``Raw``, as a
    class without fields.
    """

    __slots__ = ("find",)
    __dataclass_fields__: ClassVar[dict[str, Any]] = {}

    def __init__(self, find: Callable[[], Any] | None = None) -> None:
        self.find = find

    def __post_init__(self) -> None:
        """Initialise an instance that msgspec has decoded, since msgspec skips ``__init__``."""
        self.find = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Support pickling: the price is looked up first, because ``find`` cannot be pickled."""
        return Sale, (None if self.find is None else _Constant(self.find()),)

    def __eq__(self, other: object) -> bool:
        """Return true for any price and for ``None``, so that comparing replies ignores prices."""
        return other is None or isinstance(other, Sale)

    __hash__ = None  # type: ignore[assignment]


class _Constant(Struct):
    value: Any

    def __call__(self) -> Any:
        return self.value


class Bill(Protocol):
    """The cost of a reply: a ``dragoman.prices.Cost``, or an ``Unpriced`` without a total.

    It is false if the cost is not known; ``reason`` is then why.
    """

    @property
    def total(self) -> Decimal | None:
        """The cost in US dollars; ``None`` if it is not known."""

    @property
    def parts(self) -> Mapping[str, Decimal] | None:
        """The cost of the input, the output and other parts."""

    @property
    def pricing_version(self) -> str | None:
        """The version of the price table."""

    @property
    def reason(self) -> str | None:
        """Why the cost is not known."""


def find_bill(reply: Any) -> Bill:
    """Return what a reply cost, by the layer of prices."""
    prices: Any = import_module("dragoman.prices")
    bill: Bill = prices.cost(reply)
    return bill
