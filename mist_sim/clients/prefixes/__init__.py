"""The blocks of a prefix cache, by their content; sequences are the matter of `kv_cache`."""

from mist_sim import compiled

__path__ = compiled.places(__name__, __path__)
