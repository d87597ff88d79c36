"""The clients of a scenario file: engines of a language model, workers, and plugins of others."""
