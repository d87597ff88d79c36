"""Workers: clients that serve one stage each, one request at a time."""
