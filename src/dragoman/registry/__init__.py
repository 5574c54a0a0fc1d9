"""Names to providers: your ``models.yaml``, and behind it the bundled catalogue of vendors."""

from .config import ConfigError
from .entries import Adapter, File, ModelEntry, config_path, read_file
from .names import Registry, open_name
from .vendors import Vendor, load_vendor, vendor_names

__all__ = [
    "Adapter",
    "ConfigError",
    "File",
    "ModelEntry",
    "Registry",
    "Vendor",
    "config_path",
    "load_vendor",
    "open_name",
    "read_file",
    "vendor_names",
]
