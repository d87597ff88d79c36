"""Tables of flags and variables by their effect, with reasons."""
