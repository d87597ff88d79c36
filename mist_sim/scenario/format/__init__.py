"""How scenario files are read: YAML, units, plugins by name, paths, and messages about errors."""
