"""Reading of scenario files: YAML, units, plugins by name, paths, messages about errors."""
