cimport cython

from mist_sim.clients.prefixes.free_queue cimport Entry
from mist_sim.clients.prefixes.prefix_cache cimport Chain

cdef long long _SHARED

cdef _set(dict holders, tuple held, long long number)
@cython.locals(held=list, end=cython.longlong, entry=Entry)
cdef list _held_by(Chain chain)


cdef class SharedPrefixes:
    cdef object _reads_again
    cdef long long _block_size
    cdef dict _held, _holders
    cdef readonly dict tokens

    cpdef join(self, long long ticket, Chain chain, long long num_decodes, long long num_keys)
    cpdef leave(self, long long ticket, long long num_decodes, long long num_keys)
    @cython.locals(held=tuple, holders=dict, number=cython.longlong, num_tokens=cython.longlong)
    cdef _count(self, list parts, long long more)
    @cython.locals(changes=dict, number=cython.longlong, last=cython.longlong,
                   place=cython.longlong)
    cdef _add_all(self, dict holders, long long sign)
    cdef _add(self, long long num_decodes, long long num_tokens)
