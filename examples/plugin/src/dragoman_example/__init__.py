"""An example plugin for Dragoman with a vendor, a wire and tools."""
