cimport cython

from mist_sim.clients.prefixes.free_queue cimport Entry, FreeQueue

@cython.locals(entry=Entry, other=Entry, stop=cython.longlong)
cdef tuple _next_part(list entries, long long start, long long end)


cdef class Chain:
    cdef public list spans, entries
    cdef public long long num_shared, num_held, place
    cdef public object found

    cpdef start_over(self)
    cpdef make_private(self)
    cpdef advance(self, long long position)
    @cython.locals(entry=Entry)
    cpdef list parts(self)
    @cython.locals(entry=Entry)
    cpdef Entry last_entry(self)


cdef class PrefixCache:
    cdef public object on_evict, eviction, _watcher
    cdef bint _counts_finds
    cdef public FreeQueue queue
    cdef public long long changes
    cdef public dict _entries

    @cython.locals(num_found=cython.longlong, num_held=cython.longlong, unheld=list,
                   span_end=cython.longlong, end=cython.longlong, entries=list, part=tuple,
                   entry=Entry, stop=cython.longlong, held=cython.longlong)
    cpdef find(self, Chain chain, long long num_blocks)
    @cython.locals(num_taken=cython.longlong, end=cython.longlong, entries=list, part=tuple,
                   entry=Entry, stop=cython.longlong, place=cython.Py_ssize_t,
                   count=cython.longlong)
    cpdef long long hold(self, Chain chain, long long num_blocks) except -1
    @cython.locals(span_end=cython.longlong, origin=cython.longlong, end=cython.longlong,
                   entry=Entry)
    cpdef enter(self, Chain chain, long long num_blocks)
    @cython.locals(entries=list, other=Entry)
    cdef bint _may_grow(self, Entry entry, long long start, long long end) except -1
    @cython.locals(entries=list, entry=Entry)
    cdef Entry _new_entry(self, Chain chain, key, long long origin)
    @cython.locals(end=cython.longlong, total=cython.longlong, entry=Entry,
                   num_freed=cython.longlong)
    cpdef long long release(self, Chain chain) except -1
    @cython.locals(entry=Entry, num_lost=cython.longlong)
    cpdef evict(self, long long num_blocks)
    @cython.locals(entries=list)
    cpdef lose(self, Entry entry, long long num_blocks)
    @cython.locals(entries=list, first=Entry)
    cdef list _entries_of(self, key, long long origin)
