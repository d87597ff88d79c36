cimport cython

from mist_sim.clients.engine.core.lane cimport Lane
from mist_sim.clients.engine.core.rows cimport Rows
from mist_sim.clients.engine.core.times cimport Times

cdef long long _LEAST_ASKED, _MOST_ASKED


cdef class FastForward:
    cdef bint skip(self, Lane lane, double until) except -1
    @cython.locals(number=cython.longlong, most=cython.longlong)
    cdef long long find_quiet(self, Lane lane) except -1
    @cython.locals(times=Times, rows=Rows, num_decodes=cython.longlong, time=cython.double,
                   start=cython.double, num_keys=cython.longlong, num_left=cython.longlong)
    cdef skip_on_line(self, Lane lane, double until)
    @cython.locals(num_decodes=cython.longlong, num_left=cython.longlong, num_taken=cython.longlong,
                   time=cython.double, start=cython.double, number=cython.longlong,
                   longest=cython.longlong)
    cdef skip_as_told(self, Lane lane, double until)
    cdef note(self, Lane lane, long long number, double start, double time)
