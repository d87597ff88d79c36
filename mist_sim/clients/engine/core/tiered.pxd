cimport cython

from mist_sim.clients.engine.core.blocks cimport Blocks


cdef class TieredBlocks(Blocks):
    cdef readonly object tiers
    cdef readonly bint publishes, loads_in_step

    cpdef lie_above(self, tiers)
    cdef list missing(self, chain, found, long long num_tokens)
    cdef long long held_with(self, found, long long number) except -1
    @cython.locals(num_blocks=cython.longlong)
    cdef long long load(self, chain, found, long long number, long long num_tokens) except -1
    cdef give_back(self, chain, long long number, long long num_tokens)
