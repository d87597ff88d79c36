cimport cython

from mist_sim.clients.engine.core.blocks cimport Blocks
from mist_sim.clients.engine.core.lane cimport Lane

cdef double inf, _ROUNDING


cdef class Flow:
    cdef readonly double most_seconds, most_times, watermark
    cdef readonly bint counts_seats

    cpdef list leaving(self, Lane lane)
    @cython.locals(slot=cython.longlong)
    cdef list slowest(self, Lane lane)
    @cython.locals(number=cython.longlong)
    cdef bint is_slow(self, Lane lane, long long slot) except -1
    @cython.locals(start=cython.double)
    cdef double start(self, Lane lane, long long slot) except? -1
    @cython.locals(slot=cython.longlong, number=cython.longlong, place=cython.longlong,
                   num_above=cython.double, seats_above=cython.double)
    cdef list longest(self, Lane lane)
    @cython.locals(blocks=Blocks, num_used=cython.longlong)
    cdef double blocks_below(self, Lane lane) except? -1
    @cython.locals(num_taken=cython.longlong)
    cdef double seats_below(self, Lane lane) except? -1
    @cython.locals(below=cython.double, size=cython.longlong, step=cython.longlong)
    cpdef long long num_quiet(self, Lane lane, long long number) except -1
    @cython.locals(slot=cython.longlong, number=cython.longlong, until=cython.double,
                   limit=cython.double)
    cpdef double quiet_until(self, Lane lane) except? -1
