"""The engine of an LLM client: its loop, lanes, pipelines, replicas and step records."""
