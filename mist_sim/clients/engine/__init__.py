"""The engine of an LLM client: its loop, its lanes, pipelines and replicas of it, its records."""
