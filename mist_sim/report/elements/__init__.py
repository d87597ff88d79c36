"""The elements of all reports: cells, rows, layouts, output."""
