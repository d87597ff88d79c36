cimport cython

from mist_sim.clients.engine.core.lane cimport Lane
from mist_sim.clients.engine.core.rows cimport Rows
from mist_sim.clients.engine.core.times cimport Times

cdef double _SURELY
cdef long long _LEAST_ASKED, _MOST_ASKED, _MOST_ENDS


cdef class FastForward:
    cdef bint skip(self, Lane lane, double until) except -1
    @cython.locals(number=cython.longlong, size=cython.longlong)
    cdef double earliest(self, Lane lane) except? -1
    @cython.locals(number=cython.longlong, size=cython.longlong, waits=cython.bint,
                   most=cython.longlong)
    cdef long long find_quiet(self, Lane lane) except -1
    @cython.locals(size=cython.longlong, num_left=cython.longlong, step=cython.longlong)
    cdef long long find_room(self, Lane lane, long long number) except -1
    @cython.locals(lines="double[::1]", at=cython.Py_ssize_t, num_decodes=cython.longlong,
                   per_key=cython.double, fixed=cython.double, least=cython.double,
                   beyond=cython.double, more=cython.double, rows=Rows, latest="double[::1]",
                   num_latest=cython.longlong, time=cython.double, start=cython.double,
                   num_left=cython.longlong, num_keys=cython.longlong, seconds=cython.double)
    cdef skip_on_line(self, Lane lane, double until)
    @cython.locals(num_decodes=cython.longlong, num_left=cython.longlong, num_taken=cython.longlong,
                   time=cython.double, start=cython.double, number=cython.longlong,
                   longest=cython.longlong, num_in_windows=cython.longlong,
                   num_growing=cython.longlong, least=cython.longlong)
    cdef skip_as_told(self, Lane lane, double until)
    cdef note(self, Lane lane, long long number, double start, double time)
