"""From measured power and energy to the shares of a GPU's power draw."""
