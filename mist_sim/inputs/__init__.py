"""Files that an input names: read as far as they may be long, and never shown in messages."""
