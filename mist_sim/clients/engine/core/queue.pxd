cimport cython

cdef long long _NONE


cdef class Queue:
    cdef readonly long long first, last, length
    cdef long long[::1] before, behind

    cpdef make_room(self, long long num_slots)
    cdef add(self, long long slot)
    cdef give_back(self, long long slot)
    @cython.locals(before=cython.longlong, behind=cython.longlong)
    cdef remove(self, long long slot)
    @cython.locals(slot=cython.longlong)
    cpdef list slots(self)
