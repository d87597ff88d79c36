"""What all reports are made of: cells, rows, layouts, and how they are shown."""
