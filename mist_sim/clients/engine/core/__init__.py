"""The engine core: every step in its turn, between two events that others see."""
