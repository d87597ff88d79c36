"""Ways through a topology: shortest ones, those of ranks and of memory, those round an outage."""
