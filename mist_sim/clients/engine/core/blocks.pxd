cimport cython


cdef class Blocks:
    cdef readonly long long num_blocks, num_free, size, num_reserved, num_again, per_block
    cdef readonly bint caches, uncached_first, covers_next, shares, is_paged, has_tiers
    cdef readonly object cache

    cdef long long count(self, long long num_tokens) noexcept
    cpdef chain(self, content)
    cpdef find(self, chain, long long num_tokens)
    cpdef bint may_gain(self, found, bint whole) except -1
    @cython.locals(number=cython.longlong)
    cdef long long need(self, found, long long num_tokens, long long num_first,
                        bint whole) except? -1
    cdef long long need_to_bring(self, found, long long num_here, long long num_tokens,
                                 bint in_pieces) except? -1
    @cython.locals(size=cython.longlong)
    cdef long long more(self, long long num_here, long long num_tokens,
                        bint in_pieces) except? -1
    cpdef long long held(self, long long num_tokens) except -1
    cpdef long long in_all(self, long long num_tokens) except -1
    cdef long long alone(self, long long num_tokens) except -1
    cpdef long long prefix_tokens(self, content, long long num_tokens) except -1
    @cython.locals(number=cython.longlong, num_new=cython.longlong)
    cdef long long begin(self, chain, found, long long num_tokens, long long end) except -1
    @cython.locals(number=cython.longlong, num_found=cython.longlong)
    cdef bring(self, chain, found, long long num_tokens)
    cdef hold(self, chain, long long num_found)
    cdef grow(self, long long number)
    @cython.locals(number=cython.longlong)
    cdef enter(self, chain, long long num_tokens)
    cdef enter_answer(self, chain, long long num_tokens)
    cdef forget(self, chain, long long number)
    cdef free(self, chain, long long number, long long num_tokens)
    cdef swap_out(self, chain, long long number, long long num_tokens)
    cdef swap_in(self, chain, long long number, long long num_tokens)
    cdef preempt(self, chain, long long number, long long num_tokens)
    @cython.locals(num_held=cython.longlong, num_own=cython.longlong, num_full=cython.longlong,
                   num_first=cython.longlong)
    cdef release(self, chain, long long number, long long num_tokens)
