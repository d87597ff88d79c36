"""What made the package's own catalog and pages; run from a checkout, and in no wheel."""
