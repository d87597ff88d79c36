"""From measured power and energy to what a GPU draws."""
