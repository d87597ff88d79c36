"""Tables of results, the folder of a run, and how findings are saved."""
