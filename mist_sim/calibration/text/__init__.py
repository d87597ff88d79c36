"""Times of tasks on texts, measured on the machine that this runs on."""
