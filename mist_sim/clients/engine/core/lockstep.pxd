cimport cython

from mist_sim.clients.engine.core.lane cimport Lane
from mist_sim.clients.engine.core.quiet cimport FastForward
from mist_sim.clients.engine.core.times cimport Times

cdef double inf
cdef long long _LEAST_ASKED, _MOST_ASKED


cdef class Replica(Lane):
    cdef Lockstep together
    cdef public list ranks
    cdef bint has_part, was_on_the_spot
    cdef tuple next_chunks
    cdef long long next_decodes, next_context, next_longest, next_in_windows

    cpdef wake(self, double now)
    cpdef begin_at(self, double time)
    cdef begin(self)
    cdef double seconds(self, tuple chunks, bint on_the_spot) except? -1
    @cython.locals(number=cython.longlong, new=cython.longlong)
    cdef long long num_in_step(self) except -1
    @cython.locals(times=Times)
    cdef double seconds_alone(self, Py_ssize_t rank) except? -1
    cpdef halt(self)


cdef class Lockstep(Lane):
    cdef readonly list lanes
    cdef list active
    cdef object share, count
    cdef FastForward quiet
    cdef long long num_asked_ahead

    @cython.locals(lane=Replica)
    cdef couple(self)
    @cython.locals(may=cython.bint)
    cdef look(self, Replica lane, double now)
    @cython.locals(lane=Replica)
    cpdef begin_at(self, double time)
    cdef plan(self)
    @cython.locals(lane=Replica)
    cdef plan_parts(self)
    @cython.locals(lane=Replica, num_idle=cython.longlong)
    cdef share_tokens(self)
    @cython.locals(lane=Replica, seconds=cython.double)
    cdef double seconds_on(self, Py_ssize_t rank) except? -1
    @cython.locals(lane=Replica)
    cdef Times idle_times(self, Py_ssize_t rank)
    @cython.locals(lane=Replica)
    cdef end_at(self, double end)
    @cython.locals(lane=Replica)
    cdef end(self)
    @cython.locals(lane=Replica)
    cdef rest_if_done(self)
    @cython.locals(lane=Replica)
    cdef note_those_who_left(self)
    cdef bint is_seen(self) except -1
    @cython.locals(lane=Replica, number=cython.longlong, time=cython.double, start=cython.double,
                   num_taken=cython.longlong)
    cdef bint skip(self, double until) except -1
    @cython.locals(lane=Replica, number=cython.longlong, waits=cython.bint)
    cdef long long num_quiet_passes(self) except -1
    cdef ask_ahead(self, long long most, long long num_taken)
    @cython.locals(lane=Replica, number=cython.longlong)
    cdef num_to_ask(self, long long most, long long num_taken)
    @cython.locals(lane=Replica, times=Times, number=cython.longlong, longest=cython.longlong,
                   context_sum=cython.longlong, num_in_windows=cython.longlong,
                   num_growing=cython.longlong)
    cdef object seconds_ahead(self, Py_ssize_t rank, long long num_taken)
