"""What `mist calibrate` does for each kind of measurements that has a form of its own."""
