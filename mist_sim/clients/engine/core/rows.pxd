cimport cython

cdef long long _MOST_ENDS


cdef class Rows:
    cdef public object add, ends, tokens
    cdef public long long num_steps
    cdef public double start, end, busy
    cdef public tuple chunks
    cdef public long long num_decodes, context_sum, num_waiting, num_used, num_gaps
    cdef double[::1] latest
    cdef public long long num_latest

    cdef begin(self, double start, tuple chunks, long long num_decodes, long long context_sum,
               long long num_gaps)
    @cython.locals(position=cython.Py_ssize_t)
    cdef bint go_on(self, tuple chunks) except -1
    cdef note_end(self, double end, long long num_waiting, long long num_used)
    cdef add_end(self, double end)
    cpdef hand_over_ends(self)
    @cython.locals(num_steps=cython.longlong, num_chunks=cython.longlong, num_new=cython.longlong,
                   num_before=cython.longlong, num_pairs=cython.longlong, num_all=cython.longlong, new=cython.longlong,
                   before=cython.longlong)
    cpdef flush(self)


cdef class Counts:
    cdef public long long num_waiting, num_running, num_waiting_tokens, num_changes

    cdef begin(self, long long num_tokens)
    cdef go_back(self, long long num_tokens)
