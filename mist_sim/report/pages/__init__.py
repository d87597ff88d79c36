"""Reports as one HTML file each, which open anywhere without a server or a network."""
