"""The operations of a gateway's administration: their paths, their bodies, and what they do."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import asdict

from .keys import MAX_LIMIT, read_money

ROOT = "/v1/admin"
_Count: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_LIMIT)] | UnsetType | None
_MONEY = ("budget_usd", "budget_usd_month")


class KeyFields(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The fields of a key that a request sets; a missing field is not changed."""

    team: str | UnsetType | None = UNSET
    user: str | UnsetType | None = UNSET
    names_user: bool | UnsetType = UNSET
    models: Annotated[tuple[str, ...], Meta(min_length=1)] | UnsetType = UNSET
    budget_usd: str | UnsetType | None = UNSET
    budget_usd_month: str | UnsetType | None = UNSET
    requests_per_minute: _Count = UNSET
    tokens_per_minute: _Count = UNSET
    max_concurrency: _Count = UNSET
    expires: date | UnsetType | None = UNSET
    on_loss: Literal["drop", "warn", "reject"] | UnsetType = UNSET

    def read(self) -> dict[str, Any]:
        """Return the fields that are set, with amounts of money as exact numbers."""
        fields = asdict(self)
        found = {name: fields[name] for name in KeyFields.__struct_fields__}
        found = {name: value for name, value in found.items() if value is not UNSET}
        for name in _MONEY:
            if isinstance(found.get(name), str):
                found[name] = read_money(found[name])
        return found


class NewKey(KeyFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The name and the fields of a key to create."""

    name: str


class Rotation(Struct, frozen=True, forbid_unknown_fields=True):
    """How long the replaced key stays valid."""

    overlap_hours: Annotated[float, Meta(ge=0, le=24 * 365)] = 24.0


class TeamFields(Struct, frozen=True, forbid_unknown_fields=True):
    """The monthly budget that the keys of a team share; ``null`` removes it."""

    budget_usd_month: str | None = None


class UserFields(Struct, frozen=True, forbid_unknown_fields=True):
    """Whether the access of a user is withdrawn: keys, tokens and sessions."""

    withdrawn: bool


class BudgetFields(Struct, frozen=True, forbid_unknown_fields=True):
    """The amount that the account of a budget may spend in its period."""

    usd: str


class Operation(Struct, frozen=True, kw_only=True):
    """An operation, as it is routed and described.

    ``handler`` is the name of a method of ``Administration``, or of another class with operations,
    ``also`` a second status of success, and ``media_type`` that of the reply.
    """

    method: str
    path: str
    handler: str
    summary: str
    body: Any = None
    query: tuple[str, ...] = ()
    status: int = 200
    also: int | None = None
    media_type: str = "application/json"


_PAGED = ("limit", "after")
OPERATIONS = [
    Operation(
        method="GET", path="/keys", handler="list_keys", query=(*_PAGED, "team", "user", "search"),
        summary="The keys without their hashes, a page at a time.",
    ),
    Operation(
        method="POST", path="/keys", handler="create_key", body=NewKey, status=201,
        summary="Create a key; only this reply has it.",
    ),
    Operation(
        method="GET", path="/keys/{name}", handler="show_key", summary="A key without its hash."
    ),
    Operation(
        method="PUT", path="/keys/{name}", handler="put_key", body=KeyFields, also=201,
        summary="Create a key, which only the first reply has, or set fields of it.",
    ),
    Operation(
        method="PATCH", path="/keys/{name}", handler="change_key", body=KeyFields,
        summary="Set fields of a key.",
    ),
    Operation(
        method="DELETE", path="/keys/{name}", handler="delete_key", status=204,
        summary="Revoke a key.",
    ),
    Operation(
        method="POST", path="/keys/{name}/rotate", handler="rotate_key", body=Rotation,
        summary="Replace a key; the old one stays valid for some hours.",
    ),
    Operation(
        method="GET", path="/teams", handler="list_teams", query=_PAGED,
        summary="The teams, their budgets and the number of their keys.",
    ),
    Operation(
        method="PUT", path="/teams/{name}", handler="put_team", body=TeamFields,
        summary="Create a team, or set its budget.",
    ),
    Operation(
        method="DELETE", path="/teams/{name}", handler="delete_team", status=204,
        summary="Delete a team that has no keys.",
    ),
    Operation(
        method="GET", path="/users", handler="list_users", query=_PAGED,
        summary="The people to whom keys belong.",
    ),
    Operation(
        method="PUT", path="/users/{name}", handler="put_user", body=UserFields,
        summary="Delete the keys of a user and refuse new ones, tokens and sessions; or let the user in again.",
    ),
    Operation(
        method="GET", path="/budgets", handler="list_budgets", query=_PAGED,
        summary="What is left of each budget.",
    ),
    Operation(
        method="PUT", path="/budgets/{name}", handler="put_budget", body=BudgetFields,
        summary="Set a budget; its name is ACCOUNT:PERIOD, such as team:research:week.",
    ),
    Operation(
        method="DELETE", path="/budgets/{name}", handler="delete_budget", status=204,
        summary="Remove a budget.",
    ),
    Operation(
        method="POST", path="/budgets/{name}/reset", handler="reset_budget",
        summary="Let a budget begin again with nothing spent.",
    ),
    Operation(
        method="GET", path="/models", handler="list_models", query=_PAGED,
        summary="The models that are served.",
    ),
    Operation(
        method="GET", path="/audit", handler="list_changes", query=("limit", "before", "subject"),
        summary="Who changed what, newest first.",
    ),
]  # fmt: skip
