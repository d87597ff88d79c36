"""Results for people to read: `presenters` says which tables show what."""
