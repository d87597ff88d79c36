cdef class Counts:
    cdef public long long num_waiting, num_running, num_waiting_tokens, num_changes

    cdef begin(self, long long num_tokens)
    cdef go_back(self, long long num_tokens)
