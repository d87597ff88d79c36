"""What `mist list options` and the reference show of the options."""
