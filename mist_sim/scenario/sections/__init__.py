"""The sections of a scenario file, a module each."""
