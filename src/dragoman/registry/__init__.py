"""Names to providers: your ``models.yaml``, and behind it the bundled catalogue of vendors."""

from .config import ConfigError
from .names import Adapter, ModelEntry, Registry, config_path
from .vendors import Vendor, load_vendor, vendor_names

__all__ = ["Adapter", "ConfigError", "ModelEntry", "Registry", "Vendor", "config_path", "load_vendor", "vendor_names"]
