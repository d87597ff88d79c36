"""Options as `mist list options` and the reference show them."""
