"""Speed budgets (DESIGN §9), relative to a bare SimPy loop in the same process."""
