"""What stands in for parts of a simulation, or watches them, while a plugin is checked."""
