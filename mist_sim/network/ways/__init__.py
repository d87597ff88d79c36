"""Routes through a topology: shortest ones, of ranks and of memory, around an outage."""
