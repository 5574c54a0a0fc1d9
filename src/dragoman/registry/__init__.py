"""Resolve model names to providers: ``models.yaml`` first, then the bundled catalogue.

Box: core.
"""

from ..validate.yaml import ConfigError
from .adapters import Adapter
from .choose import NEEDS, Choice, Wanted, choose_among, read_wanted
from .entries import File, ModelEntry, config_path, find_pattern_problem, read_file
from .groups import Candidate, Group, expand_group
from .keys import keys_path, remove_key, store_key, stored_keys
from .limits import RateLimits
from .lists import ListError, read_list, read_sources
from .pools import Connection
from .registry import Registry, open_name, open_name_at, open_retrieval_name
from .served import ServedModels, list_served
from .updates import CatalogUpdate, compare, update_path, write_update
from .vendors import Vendor, load_vendor, vendor_names

__all__ = [
    "NEEDS", "Adapter", "Candidate", "CatalogUpdate", "Choice", "ConfigError", "Connection",
    "File", "Group", "ListError", "ModelEntry", "RateLimits", "Registry", "ServedModels", "Vendor",
    "Wanted", "choose_among", "compare", "config_path", "expand_group", "find_pattern_problem", "keys_path", "list_served", "load_vendor",
    "open_name", "open_name_at", "open_retrieval_name", "read_file", "read_list", "read_sources", "read_wanted",
    "remove_key", "store_key", "stored_keys", "update_path", "vendor_names", "write_update",
]  # fmt: skip
