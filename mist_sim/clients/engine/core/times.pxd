cimport cython

cdef long long _UNKNOWN, _LINE, _NO_LINE


cdef class Times:
    cdef public object ask_line, ask, ask_run
    cdef public bint needs_longest
    cdef double[::1] lines
    cdef signed char[::1] kinds

    @cython.locals(position=cython.Py_ssize_t)
    cdef bint has_line(self, long long num_decodes) except -1
    @cython.locals(lines="double[::1]", at=cython.Py_ssize_t, seconds=cython.double)
    cdef double of_decodes(self, long long num_decodes, long long num_keys) noexcept
