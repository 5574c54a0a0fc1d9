"""Names to providers: your ``models.yaml``, and behind it the bundled catalogue of vendors."""

from ..config import ConfigError
from .choose import NEEDS, Choice, Wanted, choose_among, read_wanted
from .entries import Adapter, File, ModelEntry, config_path, read_file
from .groups import Candidate, Group
from .keys import keys_path, remove_key, store_key, stored_keys
from .limits import RateLimits
from .pools import Connection
from .registry import Registry, open_embedder_name, open_name, open_reranker_name
from .served import Served, list_served
from .vendors import Vendor, load_vendor, vendor_names

__all__ = [
    "NEEDS",
    "Adapter",
    "Candidate",
    "Choice",
    "ConfigError",
    "Connection",
    "File",
    "Group",
    "ModelEntry",
    "RateLimits",
    "Registry",
    "Served",
    "Vendor",
    "Wanted",
    "choose_among",
    "config_path",
    "keys_path",
    "list_served",
    "load_vendor",
    "open_embedder_name",
    "open_name",
    "open_reranker_name",
    "read_file",
    "read_wanted",
    "remove_key",
    "store_key",
    "stored_keys",
    "vendor_names",
]
