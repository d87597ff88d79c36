"""Results for people to read: `presenters` lists which tables show which findings."""
