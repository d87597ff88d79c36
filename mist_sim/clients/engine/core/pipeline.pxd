cimport cython

from mist_sim.clients.engine.core.lane cimport Lane
from mist_sim.clients.engine.core.paged cimport PagedBlocks, PagedChain
from mist_sim.clients.engine.core.rows cimport Rows
from mist_sim.clients.engine.core.times cimport Times
from mist_sim.clients.prefixes.prefix_cache cimport Chain
from mist_sim.clients.prefixes.shared_prefixes cimport SharedPrefixes

cdef double inf, nan
cdef long long _FREE, _WAITING, _PREFILL, _DECODE, _LEAVING, _GONE, _NO_STEP, _NEVER
cdef long long _FINISHED, _OUTGROWN, _GIVEN_UP, _GIVEN_UP_WAITING, _STOPPED


cdef class Group:
    cdef readonly long long number
    cdef readonly Rows rows
    cdef SharedPrefixes prefixes
    cdef readonly list members
    cdef list newcomers, joined, now, takers
    cdef long long num_planned, num_back, last_plan, num_left, version
    cdef double delay
    cdef bint is_planned_last
    cdef long long num_in_flight, num_ending, context_sum, num_read_again, num_steps
    cdef double ended
    cdef bint has_moved


cdef class Batch:
    cdef Group group
    cdef list decodes, vain, prompts, vain_prompts, pieces, moved, left
    cdef tuple sizes
    cdef double ready, end, busy
    cdef long long num_used, num_decodes, context_sum, num_read_again, num_new, longest, version
    cdef long long num_in_windows
    cdef bint goes_on


cdef class Pipeline(Lane):
    cdef list batches, ranks, groups, recent
    cdef double[::1] rank_ends
    cdef Group group
    cdef object delay
    cdef long long num_flying, plan_number, size, stagger, longest
    cdef bint some_left, fills, drains, readmits, needs_longest
    cdef long long[::1] context, num_due, num_vain, flights, entered, eligible, home, grouped
    cdef long long[::1] num_flown

    @cython.locals(rank=Times)
    cpdef lie(self, form, longest, list ranks, delay, list groups)
    cpdef bint carry(self, long long slot, long long num_computed, bint decodes) except -1
    @cython.locals(batches=list, batch=Batch)
    cdef plan(self)
    @cython.locals(batch=Batch, group=Group)
    cdef await_oldest(self)
    @cython.locals(group=Group)
    cdef bint has_decodes(self) except -1
    cdef rest(self)
    @cython.locals(number=cython.longlong, group=Group, other=Group, batch=Batch, slot=cython.longlong)
    cdef Batch next_batch(self)
    @cython.locals(group=Group, first=Group)
    cdef Group next_group(self)
    @cython.locals(slot=cython.longlong)
    cdef move(self, Group other, Group group)
    @cython.locals(members=list, place=cython.Py_ssize_t, prefixes=SharedPrefixes,
                   number=cython.longlong)
    cdef join_group(self, long long slot, Group group)
    @cython.locals(prefixes=SharedPrefixes, number=cython.longlong)
    cdef leave_group(self, long long slot, Group group)
    @cython.locals(batch=Batch, members=list, number=cython.longlong, eligible=cython.longlong,
                   slot=cython.longlong, ended=list)
    cdef Batch compose(self, Group group)
    @cython.locals(number=cython.longlong, slot=cython.longlong)
    cdef long long num_in_windows(self, list members) except -1
    @cython.locals(sizes=list, slot=cython.longlong, new=cython.longlong, num_known=cython.longlong)
    cdef compose_pieces(self, Batch batch)
    cdef complete(self, long long slot, Batch batch)
    @cython.locals(time=cython.double, ends="double[::1]", busy=cython.double,
                   seconds=cython.double, before=Times, times=Times, rank=cython.Py_ssize_t,
                   more=cython.double, free=cython.double)
    cdef send(self, Batch batch, double delay)
    @cython.locals(number=cython.longlong)
    cdef double seconds_on(self, Times times, Batch batch, bint on_the_spot) except? -1
    @cython.locals(before=Batch)
    cdef double ready(self) except? -1
    @cython.locals(num_due=cython.longlong)
    cdef bint is_ending(self, long long slot) noexcept
    @cython.locals(is_last=cython.bint)
    cdef bint is_over(self, long long slot) noexcept
    cdef bint is_stale(self, long long slot) noexcept
    @cython.locals(slot=cython.longlong)
    cdef long long fresh(self) except? -1
    @cython.locals(batch=Batch)
    cdef Batch last_to_give(self, long long slot)
    @cython.locals(num_before=cython.longlong, members=list, size=cython.longlong,
                   need=cython.longlong, slot=cython.longlong, is_short=cython.bint,
                   has_sent_back=cython.bint)
    cdef bint schedule(self) except -1
    @cython.locals(slot=cython.longlong)
    cpdef long long first_waiting(self) except? -1
    @cython.locals(members=list, size=cython.longlong, slot=cython.longlong)
    cdef take_for_decodes(self)
    cdef enter_known(self, long long slot, long long num_tokens)
    cpdef bint is_busy(self, long long slot) except -1
    cdef long long context_of(self, long long slot) except -1
    cdef long long num_seen(self, long long slot, long long num_computed) except? -1
    @cython.locals(paged=PagedBlocks, chain=PagedChain, begin=cython.longlong,
                   end=cython.longlong)
    cdef have_turn(self, long long slot, long long new)
    @cython.locals(on_their_way=cython.longlong)
    cdef long long aligned(self, long long slot, found, long long begin, long long new) except -1
    cdef renew_tickets(self, list slots)
    @cython.locals(slot=cython.longlong)
    cdef pause(self, list slots)
    @cython.locals(slot=cython.longlong, batch=Batch, paused=list)
    cdef end_pause(self)
    @cython.locals(num_left=cython.longlong, on_their_way=cython.longlong, is_over=cython.bint)
    cdef long long num_to_go(self, long long slot) noexcept
    cdef long long num_left(self, long long slot) noexcept
    @cython.locals(slot=cython.longlong, end=cython.longlong, number=cython.longlong)
    cdef enter_piece(self, long long slot, long long end)
    cdef list who_decode(self)
    @cython.locals(number=cython.longlong)
    cdef take_for(self, long long slot)
    cdef name_for(self, long long slot)
    @cython.locals(slot=cython.longlong)
    cdef admit(self, long long budget)
    @cython.locals(num_tokens=cython.longlong, num_computed=cython.longlong,
                   new=cython.longlong, end=cython.longlong, room=cython.longlong,
                   lacks=cython.bint)
    cdef long long admit_next(self, long long slot, long long budget) except? -1
    cdef begin_prompt(self, long long slot, long long num_computed, long long new)
    @cython.locals(is_ending=cython.bint, num_known=cython.longlong,
                   num_entered=cython.longlong, batch=Batch)
    cdef give_way(self, long long slot, list gone, list outgrown, bint was_served=*)
    @cython.locals(group=Group)
    cdef take_out(self, long long slot)
    cdef give_back(self, long long slot, long long num_tokens)
    cdef give_nothing(self, long long slot)
    @cython.locals(batch=Batch, end=cython.double, group=Group, slot=cython.longlong, finished=list)
    cdef end(self)
    cdef go_on_in(self, long long slot, Group group)
    @cython.locals(slot=cython.longlong, finished=list, goes_on=cython.bint)
    cdef list hand_out(self, Batch batch)
    cdef get_token(self, long long slot, list finished)
    @cython.locals(several=list, slot=cython.longlong, on_their_way=cython.longlong)
    cdef enter_come(self, Batch batch)
    @cython.locals(several=list, place=cython.Py_ssize_t, slot=cython.longlong)
    cdef land(self, Batch batch)
    @cython.locals(group=Group, rows=Rows, end=cython.double, num_gone=cython.longlong,
                   num_gaps=cython.longlong, slot=cython.longlong, number=cython.longlong,
                   is_alone=cython.bint, steady=cython.bint, goes_on=cython.bint)
    cdef write_row(self, Batch batch)
    @cython.locals(end=cython.double, num_fresh=cython.longlong, slot=cython.longlong,
                   last=cython.double)
    cdef long long write_gaps(self, Group group, long long number, double start) except -1
    cdef emit_in(self, long long slot, Group group)
    @cython.locals(group=Group)
    cdef close_stay(self, long long slot)
    @cython.locals(first=cython.longlong, group=Group)
    cdef end_stay(self, long long slot)
    @cython.locals(state=cython.longlong, number=cython.longlong)
    cdef finish(self, long long slot)
    cdef leave_running(self, long long slot, long long num_tokens)
    cdef let_slot_go(self, long long slot)
    cdef release(self, long long slot)
    @cython.locals(batch=Batch, group=Group, number=cython.longlong)
    cdef bint skip(self, double until) except -1
    @cython.locals(slot=cython.longlong, need=cython.longlong)
    cdef bint may_admit(self) except -1
    @cython.locals(members=list, size=cython.longlong, number=cython.longlong,
                   slot=cython.longlong, left=cython.longlong, chain=Chain)
    cdef bint make_ready(self, Group group) except -1
    @cython.locals(batch=Batch, before=Group, group=Group, rows=Rows, size=cython.longlong,
                   number=cython.longlong, need=cython.longlong, end=cython.double)
    cdef bint turn_batch(self) except -1
    @cython.locals(num_back=cython.longlong, num_planned=cython.longlong, slot=cython.longlong,
                   num_known=cython.longlong)
    cdef settle_group(self, Group group)
    cpdef bint give_up(self, double now, long long slot) except -1
    @cython.locals(state=cython.longlong, slot=cython.longlong)
    cdef end_given_up(self)
    @cython.locals(state=cython.longlong)
    cdef let_go(self, long long slot)
    @cython.locals(batches=list, batch=Batch, slot=cython.longlong)
    cpdef halt(self)
    cpdef bint stop_at_end(self) except -1
    cdef go_on_stopping(self)
    @cython.locals(num_computed=cython.longlong)
    cpdef long long take_off(self, long long slot) except -1
    @cython.locals(group=Group)
    cpdef write(self)
    cdef bint is_seen(self) except -1
    cpdef long long tokens(self, long long slot) except -1
    cpdef long long num_asked(self, long long slot) except -1
    @cython.locals(number=cython.longlong, slot=cython.longlong)
    cpdef long long num_entries(self) except -1
    cpdef long long score(self) except -1
    cdef make_room(self)
