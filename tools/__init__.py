"""Programs that make the package's figures; none of them is installed with it."""
