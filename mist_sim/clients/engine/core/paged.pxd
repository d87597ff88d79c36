cimport cython

from mist_sim.clients.engine.core.blocks cimport Blocks


cdef class PagedChain:
    cdef readonly list shared
    cdef public object holding
    cdef public long long gives_at, names_at, num_slots, num_held, num_shared

    cpdef start_over(self)


cdef class PagedBlocks(Blocks):
    cdef readonly object pool, table, hits
    cdef readonly bint lags, has_windows, keeps_states, aligns, names_verified
    cdef readonly long long reach, num_ahead, num_ahead_first
    cdef object latest

    @cython.locals(number=cython.longlong)
    cdef list names(self, chain, long long number)
    @cython.locals(number=cython.longlong, num_counted=cython.longlong, num_pages=cython.longlong,
                   end=cython.longlong)
    cdef long long need_for(self, found, long long num_tokens, bint whole) except -1
    cdef bint waits_for_state(self, found) except -1
    cdef long long piece(self, PagedChain chain, found, long long begin, long long new,
                         tuple ends) except -1
    @cython.locals(number=cython.longlong, num_states=cython.longlong)
    cdef long long lacking(self, PagedChain chain, long long begin, long long end,
                           long long num_slots) except -1
    cdef long long end_of_states(self, long long end, long long num_slots) except -1
    cdef extend(self, PagedChain chain, long long num_tokens)
    cdef take(self, PagedChain chain, long long begin, long long end, long long num_slots)
    cdef list shared_names(self, content)
    cdef name(self, PagedChain chain, long long num_tokens)
    cdef give_behind(self, PagedChain chain, long long num_tokens)
    cdef cut(self, PagedChain chain, long long num_tokens)
    cdef note(self, PagedChain chain)
