"""A vendor, a wire and tools for Dragoman."""
