cimport cython

from mist_sim.clients.engine.core.lane cimport Lane
from mist_sim.clients.engine.core.lockstep cimport Replica
from mist_sim.clients.engine.core.paged cimport PagedBlocks, PagedChain

cdef double inf
cdef long long _PREFILL, _DECODE, _LEAVING, _FROM_TIERS, _NO_ROOM, _LEAST_LATE, _FEW_ASKED, _MOST_ASKED, _NEVER


cdef class Drafting(Replica):
    cdef list paths
    cdef readonly list decodes
    cdef readonly long long num_over, num_drafts, num_more
    cdef bint pads_prompts, may_pad, covers_next, verifies_late
    cdef double[::1] told
    cdef long long num_told, next_told, num_to_ask
    cdef long long[::1] num_taken, num_last, num_beyond, num_took, from_tokens, padded, turn_end

    @cython.locals(late=cython.bint)
    cpdef obey(self, setup, cadence, bint asks_always)
    cdef join_decodes(self, long long slot)
    cdef leave_decodes(self, long long slot)
    cdef long long num_keys(self) except? -1
    @cython.locals(decodes=list, place=cython.Py_ssize_t, other=cython.longlong)
    cdef count_in(self, long long slot, long long context)
    cdef count_out(self, long long slot, long long context)
    cdef bint is_writing(self, long long slot) except -1
    cdef begin_over(self, long long slot)
    cdef end_over(self, long long slot)
    @cython.locals(slot=cython.longlong)
    cdef free_leaving(self)
    @cython.locals(num_known=cython.longlong)
    cdef long long stop(self, long long slot) except -1
    cdef begin_anew(self, long long slot)
    @cython.locals(slot=cython.longlong)
    cdef renew_tickets(self, list slots)
    cdef bint has_no_turn(self, long long slot) except -1
    @cython.locals(slot=cython.longlong)
    cdef list sit_out(self, list slots)
    @cython.locals(number=cython.longlong)
    cdef long long num_served(self, long long slot) except -1
    cdef long long num_cacheable(self, long long slot) except -1
    cdef long long num_unknown(self, long long slot) except -1
    cdef release(self, long long slot)
    @cython.locals(number=cython.longlong)
    cdef long long next_slots(self, long long slot) except -1
    cdef long long takes_blocks(self, long long slot) except? -1
    @cython.locals(context=cython.longlong, end=cython.longlong, num_slots=cython.longlong)
    cdef long long need_of(self, long long slot) except? -1
    @cython.locals(need=cython.longlong, number=cython.longlong, slot=cython.longlong)
    cdef bint is_short(self) except -1
    @cython.locals(number=cython.longlong, slot=cython.longlong)
    cdef long long next_need(self) except? -1
    @cython.locals(number=cython.longlong, slot=cython.longlong)
    cdef take_for_decodes(self)
    @cython.locals(number=cython.longlong, slot=cython.longlong)
    cdef lose_blocks(self)
    @cython.locals(slot=cython.longlong)
    cdef lose_pages(self)
    cdef long long slots_in_turn(self, long long slot, long long end) except -1
    @cython.locals(paged=PagedBlocks, chain=PagedChain, end=cython.longlong,
                   num_slots=cython.longlong, num_unknown=cython.longlong)
    cdef decode_turn(self, long long slot, long long context, bint is_ahead)
    cdef note_piece(self, long long slot)
    cdef long long num_seen(self, long long slot, long long num_computed) except? -1
    @cython.locals(number=cython.longlong, slot=cython.longlong, context=cython.longlong)
    cdef tuple in_windows(self, long long num_ahead)
    @cython.locals(number=cython.longlong)
    cdef long long num_needed(self, long long slot) except -1
    cdef bint has_answer(self, long long slot) except -1
    @cython.locals(number=cython.longlong)
    cdef bint outgrows(self, long long slot) except -1
    cdef bint schedule(self) except -1
    cdef let_in(self)
    cpdef bint may_run(self, long long slot) except -1
    cpdef long long let_come(self, long long slot, long long most) except -1
    cdef list who_decode(self)
    @cython.locals(number=cython.longlong)
    cdef take_for(self, long long slot)
    @cython.locals(number=cython.longlong)
    cdef name_for(self, long long slot)
    @cython.locals(num_tokens=cython.longlong, room=cython.longlong, is_lone=cython.bint,
                   has_room=cython.bint, pads=cython.bint, more=cython.longlong)
    cdef long long pad(self, long long slot, long long num_left, long long end, found,
                       long long budget) except? -1
    @cython.locals(number=cython.longlong, num_loaded=cython.longlong)
    cdef bint has_room_behind(self, long long slot, long long end, long long more,
                              found) except -1
    @cython.locals(num_here=cython.longlong)
    cdef long long pad_loaded(self, long long slot, long long new, long long budget) except? -1
    @cython.locals(end=cython.longlong)
    cdef bint may_go_on(self, long long slot, long long new) except -1
    cdef enter_piece(self, long long slot, long long end)
    @cython.locals(slot=cython.longlong)
    cdef tuple chunks(self)
    @cython.locals(slot=cython.longlong, given=cython.longlong)
    cdef begin(self)
    @cython.locals(is_other=cython.bint)
    cdef double seconds(self, tuple chunks, bint on_the_spot) except? -1
    @cython.locals(number=cython.longlong, contexts="long long[::1]", longest="long long[::1]",
                   seen="long long[::1]", reach=cython.longlong,
                   slot=cython.longlong, path=bytes, place=cython.Py_ssize_t,
                   step=cython.longlong, context=cython.longlong, last=cython.longlong)
    cdef ask_ahead(self)
    @cython.locals(path=bytes, place=cython.Py_ssize_t)
    cdef long long next_given(self, long long slot) except -1
    @cython.locals(longest=cython.longlong, slot=cython.longlong, context=cython.longlong)
    cdef long long longest_context(self) except -1
    @cython.locals(slot=cython.longlong, is_ahead=cython.bint, number=cython.longlong)
    cdef enter_answers(self)
    @cython.locals(slot=cython.longlong)
    cdef enter_computed(self)
    @cython.locals(in_turn=cython.bint, is_behind=cython.bint, number=cython.longlong,
                   finished=list, slot=cython.longlong, given=cython.longlong,
                   left=cython.longlong)
    cdef end_decodes(self)
    cdef bint is_seen(self) except -1
    cpdef long long tokens(self, long long slot) except -1
    cpdef long long joined_with(self, long long slot) except -1
    cpdef long long num_decoded(self, long long slot) except -1
    cpdef long long score(self) except -1
    cdef make_room(self)
