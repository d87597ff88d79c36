"""What has to hold of several clients of one run together."""
