"""How results reach the disk."""
