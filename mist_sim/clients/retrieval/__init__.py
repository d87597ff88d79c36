"""KV retrieval: levels of storage that a prompt's entries come from (MIST §IV-A3)."""
