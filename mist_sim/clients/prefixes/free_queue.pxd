cimport cython


cdef class Entry:
    cdef public object key
    cdef public long long origin, first, num_cached, num_held, written
    cdef public Entry rest, whole
    cdef public list pieces
    cdef public dict finds
    cdef long long _num_holders
    cdef dict _fewer

    cpdef hold(self, long long num_blocks, long long num_requests=*)
    cpdef grow(self, long long num_blocks)
    @cython.locals(number=cython.longlong)
    cpdef long long release(self, long long num_blocks) except -1
    @cython.locals(count=cython.longlong, rest=Entry, holders=dict)
    cpdef Entry split(self, long long position)


cdef class Piece:
    cdef public Entry entry
    cdef public long long num_blocks
    cdef public Piece next, previous


cdef class FreeQueue:
    cdef public Piece _ends

    @cython.locals(ends=Piece, latest=Piece, piece=Piece)
    cpdef append(self, Entry entry, long long num_blocks)
    @cython.locals(first=Piece)
    cpdef prepend(self, long long num_blocks)
    @cython.locals(piece=Piece, num_taken=cython.longlong)
    cpdef take(self, Entry entry, long long num_blocks)
    @cython.locals(lost=list, piece=Piece, before=Piece, behind=Piece, num_taken=cython.longlong)
    cpdef list pop(self, long long num_blocks)
    @cython.locals(rest=Entry, piece=Piece, part=Piece, num_blocks=cython.longlong)
    cpdef Entry split(self, Entry entry, long long position)
    @cython.locals(before=Piece)
    cpdef _insert(self, Piece piece, Piece behind)
    @cython.locals(before=Piece, behind=Piece)
    cpdef _remove(self, Piece piece)
