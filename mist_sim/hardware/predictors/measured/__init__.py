"""Step times from measurements: tables, regressions, and steps run on a device at hand."""
