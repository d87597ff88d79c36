cimport cython

from mist_sim.clients.engine.core.lane cimport Lane
from mist_sim.clients.engine.core.quiet cimport FastForward

cdef double inf


cdef class Core:
    cdef public bint runs_ahead
    cdef readonly FastForward quiet
    cdef readonly double next_time, now
    cdef readonly long long phase
    cdef readonly Lane lane
    cdef list heap

    @cython.locals(lane=Lane, second=Lane, other=Lane, until=cython.double,
                   until_phase=cython.longlong, is_seen=cython.bint)
    cpdef bint advance(self, double time, long long phase) except -1
    @cython.locals(is_first=cython.bint, is_quiet=cython.bint, quiet=FastForward,
                   num_changes=cython.longlong)
    cdef bint step(self, Lane lane, double until, long long phase) except -1
    cpdef catch_up(self, Lane lane, double time, long long phase)
    cpdef wake(self, Lane lane)
    cdef put(self, Lane lane)
    cdef drop(self)
    cpdef rest(self, Lane lane)
    @cython.locals(last=Lane, place=cython.Py_ssize_t)
    cdef take_out(self, Lane lane)
    @cython.locals(lane=Lane, other=Lane, above=cython.Py_ssize_t)
    cdef rise(self, Py_ssize_t place)
    @cython.locals(lane=Lane, other=Lane, beside=Lane, below=cython.Py_ssize_t, size=cython.Py_ssize_t)
    cdef sink(self, Py_ssize_t place)
