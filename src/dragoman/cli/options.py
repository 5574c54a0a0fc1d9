"""Define the options and arguments that commands share, and open the model that they name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Annotated, Any, TypeAlias, TypeVar

import click
from msgspec import Struct

from ..blocking import SyncProvider
from ..capabilities import describe_end
from ..errors import InvalidModelError, ProviderError
from ..middleware import Retry, walk
from ..prices import PriceTable
from ..provider import SCHEMES, Provider, connect
from ..provider.call_log import print_log
from ..registry import Registry
from .completion import ModelName, complete_wire
from .console import notify
from .errors import reject, report_mistakes
from .parameters import option
from .progress import fetch_default_model

_Command = TypeVar("_Command", bound=Callable[..., Any])
ApiKeyVariable: TypeAlias = Annotated[
    str, "Read the API key from this environment variable.", option("NAME")
]


def model_argument(**settings: Any) -> Callable[[_Command], _Command]:
    """Add the argument that names a model, with shell completion."""
    return click.argument("model", type=ModelName(), **settings)


ModelOption: TypeAlias = Annotated[
    str | None,
    "Use this model instead of the default.",
    option("MODEL", "-m --model", shell_complete=ModelName().shell_complete),
]
SystemOption: TypeAlias = Annotated[
    str | None, "Send this text as the system prompt.", option("TEXT", "-s --system")
]
ConcurrencyOption: TypeAlias = Annotated[int, "Make this many calls at a time.", option(ge=1)]
BudgetOption: TypeAlias = Annotated[
    str | None, "Stop when all runs have used usd=N, tokens=N or rows=N.", option("KIND=N")
]
PollOption: TypeAlias = Annotated[
    float, "Wait N seconds before --via provider first asks for results."
]


class ModelOptions(Struct, frozen=True):
    """The options for the address, the wire, the key and the timeout of a model."""

    base_url: Annotated[
        str | None,
        "Call the model at this URL. For vendor:model, this is another address of that vendor.",
        option("URL"),
    ] = None
    wire: Annotated[
        str | None,
        "Set the wire (API format) of --base-url; the default is the wire of the vendor, or openai.",
        option(shell_complete=complete_wire),
    ] = None
    api_key_env: ApiKeyVariable = "DRAGOMAN_API_KEY"
    timeout: Annotated[float | None, "Stop a call after this time.", option("SECONDS")] = None
    verbose: Annotated[
        bool, "Print each call with its request and reply to the standard error output."
    ] = False

    def connect_settings(self) -> dict[str, Any]:
        """Return the options that are given as arguments of ``connect``; begin to print calls."""
        if self.verbose:
            print_log("debug")
        settings: dict[str, Any] = {} if self.timeout is None else {"timeouts": self.timeout}
        if self.base_url is not None:
            key = os.environ.get(self.api_key_env)
            settings |= {"base_url": self.base_url, "wire": self.wire, "api_key": key}
        return settings


def load_registry() -> Registry:
    """Return the registry; report a mistake in ``models.yaml`` in one line, with its position."""
    with report_mistakes():
        return Registry.load()


def load_prices(path: str | None, *, only: bool = False) -> PriceTable:
    """Return the default prices, overridden by a file; with ``only``, omit the defaults."""
    if path is None:
        return load_registry().prices()
    with reject(ValueError, OSError):
        table = PriceTable.load(path)
        return table if only else load_registry().prices().with_overrides(table.rows, table.terms)


def default_model() -> str | None:
    """Return the default model that the environment or ``models.yaml`` sets, or ``None``."""
    return os.environ.get("DRAGOMAN_MODEL") or load_registry().default


def choose_model() -> str:
    """Return the configured default model or, if none is configured, the embedded model."""
    chosen = default_model()
    if not chosen:
        notify('using "local", the embedded model; set DRAGOMAN_MODEL or default: in models.yaml')
    return chosen or "local"


def is_model_name(word: str) -> bool:
    """Return whether an argument is a model name rather than a prompt."""
    if not word or any(character.isspace() for character in word):
        return False
    if word.partition(":")[0] in SCHEMES:
        return True
    registry = load_registry()
    try:
        registry.find(word)
    except InvalidModelError:
        return any(name.partition(":")[2] == word for name in registry.names())
    return True


def open_model(
    model: str, target: ModelOptions, *, retries: int = 2, planning: bool = False
) -> SyncProvider:
    """Connect to the model that the options name: an address, a registry name, or ``local``.

    Transient failures are retried, and each retry is printed.
    """
    if target.base_url is None and not planning:
        fetch_default_model(model)
    settings = target.connect_settings()
    with reject(ValueError):
        if target.base_url is not None:
            provider = connect(model, **settings)
        else:
            provider = _open_named(model, planning=planning, **settings)
    notice = describe_end(provider.model, provider.capabilities)
    if notice is not None and not planning:
        notify(notice)
    # add retries unless a candidate of a group already has its own
    has_retries = any(isinstance(part, Retry) for part in walk(provider))
    if retries and not planning and not has_retries:
        provider = Retry(provider, max_retries=retries, on_retry=_show_retry)
    return SyncProvider(provider)


def _open_named(model: str, **settings: Any) -> Provider:
    """Open a model by its name; an error names the variable that the name comes from."""
    try:
        return load_registry().provider(model, **settings)
    except InvalidModelError as error:
        if model == os.environ.get("DRAGOMAN_MODEL"):
            error.message = f"{error.message} (the name comes from the variable DRAGOMAN_MODEL)"
        raise


def _show_retry(error: ProviderError, attempt: int, wait: float) -> None:
    notify(f"attempt {attempt + 1} failed ({error.category}); retrying in {wait:.1f} s")


def read_json(path: str) -> Any:
    """Return the content of a JSON file; raise a usage error if the file is invalid."""
    with (
        reject(ValueError, RecursionError, about=f"{path} is not JSON: "),
        reject(OSError, about=f"{path} cannot be read: "),
        click.open_file(path, encoding="utf-8") as file,
    ):
        return json.load(file)
