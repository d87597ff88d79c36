"""Load generators: tables of their flags, and the workloads that their command lines mean."""
