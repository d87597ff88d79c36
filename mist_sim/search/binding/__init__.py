"""What binds a deployment at its goodput: runs with more of one resource, and the answer."""
