cimport cython

from mist_sim.clients.engine.core.lane cimport Lane
from mist_sim.clients.engine.core.quiet cimport FastForward

cdef double inf
cdef long long _LEAST_ASKED, _MOST_ASKED


cdef class Replica(Lane):
    cdef Lockstep together
    cdef bint has_part, was_on_the_spot
    cdef tuple next_chunks
    cdef long long next_decodes, next_context, next_longest, next_in_windows

    @cython.locals(together=Lockstep, may=cython.bint)
    cdef wake(self, double now)
    cpdef begin_at(self, double time)
    cdef begin(self)
    cdef double seconds(self, tuple chunks, bint on_the_spot) except? -1
    @cython.locals(number=cython.longlong, new=cython.longlong)
    cdef long long num_in_step(self) except -1
    cdef double seconds_alone(self) except? -1
    cpdef halt(self)


cdef class Lockstep(Lane):
    cdef list lanes, active
    cdef object share, count
    cdef FastForward quiet
    cdef long long num_asked_ahead

    @cython.locals(lane=Replica)
    cdef couple(self)
    cdef plan_at(self, double time)
    @cython.locals(lane=Replica)
    cpdef begin_at(self, double time)
    @cython.locals(lane=Replica)
    cdef plan(self)
    @cython.locals(lane=Replica, seconds=cython.double, end=cython.double,
                   num_idle=cython.longlong)
    cdef begin_together(self)
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
    @cython.locals(lane=Replica, number=cython.longlong, longest=cython.longlong,
                   context_sum=cython.longlong, num_in_windows=cython.longlong,
                   num_growing=cython.longlong)
    cdef ask_ahead(self, long long most, long long num_taken)
