"""What `mist afd` reads and prints."""
