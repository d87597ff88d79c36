cimport cython

from mist_sim.clients.engine.core.lane cimport Lane
from mist_sim.clients.engine.core.lockstep cimport Lockstep, Replica

cdef double inf


cdef class VirtualEngine(Lockstep):
    cdef VirtualPipeline pipeline
    cdef double ready, busy, delay
    cdef long long num_taken, num_more
    cdef bint is_taken
    cdef list rank_times

    cpdef lie(self, VirtualPipeline pipeline)
    @cython.locals(lane=Replica, number=cython.longlong)
    cdef bint is_empty(self) except -1
    cdef look(self, Replica lane, double now)
    cpdef begin_at(self, double time)
    @cython.locals(lane=Replica)
    cdef rest_if_done(self)
    @cython.locals(lane=Replica, first=Replica, delay=cython.double, seconds=cython.double,
                   time=cython.double, rank=cython.Py_ssize_t)
    cdef enter(self, double now)
    @cython.locals(free=cython.double)
    cdef double send(self, double[::1] ends, Py_ssize_t rank, double time, double seconds) except? -1
    @cython.locals(lane=Replica, first=Replica, end=cython.double)
    cdef end_pass(self)
    cdef find_more(self)
    @cython.locals(lane=Replica)
    cdef bint is_quiet(self) except -1
    cdef take_end(self)
    @cython.locals(lane=Replica, time=cython.double, rank=cython.Py_ssize_t)
    cdef take_plan(self, double now)
    @cython.locals(first=Replica, rank=cython.Py_ssize_t)
    cdef ask_times(self)
    @cython.locals(lane=Replica, end=cython.double)
    cdef settle_passes(self)


cdef class VirtualPipeline(Lane):
    cdef list engines
    cdef object delay
    cdef double[::1] rank_ends

    @cython.locals(engine=VirtualEngine, lane=Replica, rank=cython.Py_ssize_t)
    cpdef begin_at(self, double time)
    @cython.locals(rank=cython.Py_ssize_t)
    cdef lose_passes(self)
    @cython.locals(engine=VirtualEngine, found=VirtualEngine, ready=cython.double)
    cdef VirtualEngine next_engine(self)
    @cython.locals(engine=VirtualEngine, waiting=VirtualEngine, entry=cython.double)
    cdef find_next(self)
    @cython.locals(engine=VirtualEngine, now=cython.double)
    cdef plan(self)
    @cython.locals(engine=VirtualEngine)
    cdef end(self)
    @cython.locals(lane=Replica)
    cdef note_those_who_left(self, VirtualEngine engine)
    cdef bint is_seen(self) except -1
    @cython.locals(engine=VirtualEngine, waiting=VirtualEngine, has_taken=cython.bint)
    cdef bint skip(self, double until) except -1
    @cython.locals(engine=VirtualEngine, first=VirtualEngine)
    cdef VirtualEngine first_to_return(self)
