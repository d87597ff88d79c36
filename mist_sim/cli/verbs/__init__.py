"""The verbs of `mist`, a file each: options in, results out."""
