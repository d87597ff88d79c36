"""What results warn of, for tests."""


def texts(summary, *kinds):
    """Return the texts of the warnings of a summary; kinds: of these alone."""
    return [each["text"] for each in summary["warnings"] if not kinds or each["kind"] in kinds]


def about(summary, name):
    """Return the texts of the warnings of one of several points, or of all of them."""
    return [each["text"] for each in summary["warnings"] if name in each.get("of", [name])]
