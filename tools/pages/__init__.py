"""What makes the documentation: its site, the outputs of its blocks, tables and pictures."""
