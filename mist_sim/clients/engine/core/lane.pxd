cimport cython

from mist_sim.clients.engine.core.blocks cimport Blocks
from mist_sim.clients.engine.core.paged cimport PagedBlocks, PagedChain
from mist_sim.clients.engine.core.rows cimport Counts, Rows
from mist_sim.clients.engine.core.tiered cimport TieredBlocks
from mist_sim.clients.engine.core.times cimport Times
from mist_sim.clients.prefixes.prefix_cache cimport Chain
from mist_sim.clients.prefixes.shared_prefixes cimport SharedPrefixes

cdef double inf, nan
cdef long long _FREE, _WAITING, _PREFILL, _DECODE, _LEAVING
cdef long long _COMING, _CAME, _ABANDONED, _HELD, _COPIED, _SWAPPED, _PAUSED
cdef long long _FINISHED, _OUTGROWN, _GIVEN_UP, _GIVEN_UP_WAITING, _STOPPED, _NO_STEP, _NO_ROOM, _NEVER
cdef long long _COMES, _HAS_ALL, _LOST, _MOVES, _GOES, _RETURNS, _LOOKS, _NOTHING, _AN_ANSWER, _A_PREFIX, _FROM_TIERS
cdef long long _NONE, _ENTRIES, _ENTRIES_SILENTLY, _BESIDE, _APART, _WHEN_IDLE

cpdef object longer(object column, str code, Py_ssize_t size)


cdef class Lane:
    cdef readonly long long number, end_phase, plan_phase, max_num_seqs, max_tokens
    cdef public object flow
    cdef readonly list due_slots
    cdef readonly object first
    cdef long long num_tickets, num_done_blocks
    cdef readonly bint whole_must_fit, plans_ahead, swaps, has_host, is_whole, is_apart
    cdef readonly long long prompts_come, num_apart, num_late
    cdef readonly double waits_since
    cdef public Times times
    cdef readonly Blocks blocks
    cdef readonly PagedBlocks paged
    cdef readonly bint is_paged, in_order, aligns, keeps_states
    cdef readonly list left_out
    cdef readonly long long per_block
    cdef long long num_used_before
    cdef long long[::1] piece_step, before_piece
    cdef readonly Rows rows
    cdef readonly Counts counts
    cdef readonly object notes
    cdef SharedPrefixes prefixes
    cdef public double time, due
    cdef public long long due_phase
    cdef public long long phase, place, seen_at, num_steps
    cdef public list notices
    cdef public bint is_watched, tells_prompts, waits_for_more
    cdef readonly bint stops, is_halted, is_pipeline
    cdef readonly bint is_planning
    cdef public double start, ended, known_until
    cdef public double begins_at
    cdef readonly double wait
    cdef public bint was_ahead, was_apart, has_changed, is_alone, is_blocked
    cdef readonly long long num_new, num_decodes
    cdef public long long num_given, num_beside
    cdef public long long context_sum, num_writers, num_read_again
    cdef readonly long long decode_need, next_last
    cdef long long[::1] takers
    cdef readonly list running, prefilling, leaving
    cdef readonly object queue
    cdef public list given_up
    cdef public object ranked
    cdef public object own
    cdef readonly bint asks_always, follows, is_given
    cdef dict taking
    cdef list gone
    cdef readonly long long num_tokens_left, most_of_one
    cdef readonly list paused
    cdef readonly bint some_missed, all_missed
    cdef readonly long long threshold, most_partial, max_piece
    cdef readonly bint spares_one, held_spares_hits, is_held
    cdef readonly object cadence
    cdef readonly dict swapped, going, returning
    cdef readonly bint overlaps
    cdef readonly long long num_going
    cdef long long num_copied
    cdef readonly object host
    cdef readonly bint is_staged
    cdef double copy_time, load_time
    cdef readonly TieredBlocks tiered
    cdef readonly bint has_tiers, defers, spares, reserves_rest
    cdef public bint preempted_first
    cdef set idle
    cdef list deferred
    cdef dict gave_back
    cdef readonly list moved, loaded, came, joined, forgotten, copied
    cdef readonly long long num_coming, num_abandoned, num_held, num_promised
    cdef public long long num_quiet, lag, num_ahead, next_ahead
    cdef readonly long long num_queries, num_behind, num_first, max_context, num_gone
    cdef double[::1] ahead
    cdef readonly long long num_slots
    cdef list unused
    cdef readonly list chains
    cdef double[::1] queued_at, started_at, first_token_at, last_token_at
    cdef long long[::1] num_prompt, num_tokens, num_final, num_computed, num_piece, num_blocks
    cdef long long[::1] num_cached, num_queued, num_preempted, num_ahead_of, first_step
    cdef long long[::1] first_apart, last_step, state, num_brought, brings, leaves, resumed
    cdef long long[::1] ticket, paced_from, num_backflows
    cdef double[::1] paced_at

    cpdef obey(self, setup, cadence, bint asks_always)
    cpdef be_staged(self, host, bint asks_always)
    @cython.locals(slot=cython.longlong)
    cpdef long long add(self, double now, long long num_prompt, long long num_tokens,
                        long long num_final, double last_token_at, chain, long long brings=*,
                        long long num_brought=*, long long leaves=*) except -1
    @cython.locals(may=cython.bint)
    cpdef wake(self, double now)
    cdef bint waits(self) except -1
    @cython.locals(state=cython.longlong, is_known=cython.bint, waits=cython.bint)
    cpdef bint give_up(self, double now, long long slot) except -1
    cpdef halt(self)
    cdef lose_blocks(self)
    @cython.locals(taken=cython.longlong)
    cpdef write(self)
    cpdef bint stop_at_end(self) except -1
    @cython.locals(num_computed=cython.longlong)
    cpdef long long take_off(self, long long slot) except -1
    @cython.locals(num_known=cython.longlong, state=cython.longlong)
    cdef let_go(self, long long slot)
    cdef bint may_be_written(self, long long slot) except -1
    @cython.locals(slot=cython.longlong, number=cython.longlong, num_known=cython.longlong)
    cdef free_deferred(self)
    @cython.locals(num_known=cython.longlong, state=cython.longlong)
    cdef long long stop(self, long long slot) except -1
    cdef long long num_cacheable(self, long long slot) except -1
    @cython.locals(is_behind=cython.bint)
    cdef long long num_unknown(self, long long slot) except -1
    cpdef double decoded_at(self) except? -1
    @cython.locals(first=cython.longlong, last=cython.longlong)
    cdef end_stay(self, long long slot)
    @cython.locals(last=cython.longlong)
    cdef join_decodes(self, long long slot)
    @cython.locals(context=cython.longlong)
    cdef leave_decodes(self, long long slot)
    @cython.locals(size=cython.longlong)
    cdef Py_ssize_t takes_at(self, long long slot) except -1
    cpdef long long tokens(self, long long slot) except -1
    cdef free(self, long long slot, long long num_computed)
    cdef release(self, long long slot)
    @cython.locals(slot=cython.longlong)
    cdef free_leaving(self)
    @cython.locals(num_kept=cython.longlong)
    cdef free_gone(self, long long slot)
    cdef let_seat_go(self, long long slot, long long num_computed, bint later)
    cdef long long need_to_join(self, long long slot) except? -1
    cdef long long num_needed(self, long long slot) except -1
    cdef bint outgrows(self, long long slot) except -1
    @cython.locals(num_tokens=cython.longlong, num_held=cython.longlong)
    cpdef tuple to_come(self, long long slot)
    cdef bring(self, long long slot, found)
    cpdef entries_come(self, double now, long long slot, double last_token_at, bint is_lost)
    cdef take_in(self, long long slot, bint is_lost)
    cdef forget(self, long long slot)
    @cython.locals(number=cython.longlong)
    cdef free_forgotten(self)
    cpdef release_held(self, double now, long long slot)
    @cython.locals(slot=cython.longlong)
    cdef free_copied(self)
    @cython.locals(need=cython.longlong, slot=cython.longlong, room=cython.longlong,
                   more=cython.longlong)
    cdef join(self)
    cdef join_now(self, long long slot, long long more)
    @cython.locals(slot=cython.longlong, number=cython.longlong)
    cdef long long num_stalled(self) except -1
    @cython.locals(slot=cython.longlong, last=cython.double)
    cdef end_first(self)
    cpdef resume(self, long long slot, double started_at, double first_token_at,
                 long long num_preempted, long long num_beside)
    @cython.locals(number=cython.longlong, num_found=cython.longlong)
    cdef bint take_over(self, long long slot, long long num_tokens, long long num_more) except -1
    cpdef bint carry(self, long long slot, long long num_computed, bint decodes) except -1
    cdef carry_prompt(self, long long slot, long long num_computed)
    @cython.locals(number=cython.longlong)
    cpdef bint carry_brought(self, long long slot) except -1
    @cython.locals(number=cython.longlong, num_tokens=cython.longlong)
    cpdef carry_swapped(self, long long slot)
    cpdef carry_held(self, long long slot)
    cpdef begin_at(self, double time)
    @cython.locals(has_changed=cython.bint)
    cdef plan(self)
    @cython.locals(slot=cython.longlong, state=cython.longlong, is_lost=cython.bint)
    cdef learn(self)
    @cython.locals(num_waiting=cython.longlong, on_their_way=cython.bint)
    cdef rest(self)
    cdef bint has_work(self) except -1
    @cython.locals(num_before=cython.longlong, has_preempted=cython.bint, is_short=cython.bint,
                   has_sent_back=cython.bint, num_returning=cython.longlong,
                   returns=cython.bint, number=cython.longlong)
    cdef bint schedule(self) except -1
    @cython.locals(may_gain=cython.bint)
    cdef bint admit_apart(self) except -1
    @cython.locals(need=cython.longlong)
    cdef admit_without_decodes(self)
    cdef prepare(self)
    cdef welcome_back(self)
    cdef give_blocks(self, bint is_short)
    cdef bint ask_own(self) except -1
    cpdef send_back(self, long long slot)
    @cython.locals(slot=cython.longlong)
    cpdef long long first_waiting(self) except? -1
    @cython.locals(slot=cython.longlong)
    cpdef list known_waiting(self)
    cdef let_outgrown_go(self, list slots)
    cdef take_for_decodes(self)
    @cython.locals(need=cython.longlong)
    cpdef bint fits(self, long long slot) except -1
    cpdef bint let_prompt_in(self, long long slot) except -1
    cpdef bint set_aside(self, long long slot) except -1
    @cython.locals(number=cython.longlong)
    cpdef bint set_brought_aside(self, long long slot) except -1
    @cython.locals(num_before=cython.longlong)
    cdef bint follow(self) except -1
    cpdef bint may_run(self, long long slot) except -1
    cpdef bint may_be_admitted(self, long long slot) except -1
    cpdef list may_come(self)
    @cython.locals(new=cython.longlong)
    cpdef long long lacks(self, long long slot, long long most) except -1
    @cython.locals(new=cython.longlong, number=cython.longlong, need=cython.longlong)
    cpdef long long give_step(self, long long slot, long long most) except -1
    @cython.locals(new=cython.longlong)
    cdef long long own_piece(self, long long slot, long long most) except -1
    @cython.locals(end=cython.longlong)
    cdef long long need_for(self, long long slot, long long new) except -1
    cdef take_part(self, long long slot, long long new, long long need)
    @cython.locals(slot=cython.longlong, decodes=list)
    cdef give_all(self)
    @cython.locals(slot=cython.longlong)
    cdef list who_decode(self)
    cdef take_for(self, long long slot)
    cdef name_for(self, long long slot)
    @cython.locals(slot=cython.longlong, missed=list)
    cdef leave_out(self)
    @cython.locals(was_served=cython.bint, left=cython.longlong, is_prompt=cython.bint)
    cpdef put_off(self, long long slot)
    @cython.locals(is_answer=cython.bint, number=cython.longlong,
                   left=cython.longlong)
    cpdef long long let_come(self, long long slot, long long most) except -1
    @cython.locals(is_prompt=cython.bint)
    cdef long long let_back(self, long long slot, long long most) except -1
    @cython.locals(room=cython.longlong, more=cython.longlong)
    cdef long long let_join(self, long long slot) except -1
    cdef long long next_need(self) except? -1
    cdef let_in(self)
    cdef long long budget(self) except? -1
    cdef find_limits(self)
    @cython.locals(slot=cython.longlong, number=cython.longlong)
    cdef bint is_lone(self) except -1
    @cython.locals(slot=cython.longlong, gone=list, outgrown=list, goes_round=cython.bint,
                   from_anywhere=cython.bint, num_before=cython.longlong,
                   has_preempted=cython.bint, is_sparing=cython.bint)
    cdef preempt(self)
    cdef long long victim(self) except -1
    @cython.locals(slot=cython.longlong, victim=cython.longlong, turns=list, lacking=dict,
                   missed=list, goes_on=cython.bint, was_served=cython.bint, new=cython.longlong,
                   number=cython.longlong, num_taken=cython.longlong, num_skipped=cython.longlong,
                   left=cython.longlong, is_sparing=cython.bint)
    cdef take_turns(self, list gone, list outgrown)
    cdef long long num_decodes_before(self, dict served) except -1
    cdef long long lacks_after_turn(self, long long slot, long long new,
                                    long long number) except -1
    @cython.locals(num_computed=cython.longlong, new=cython.longlong)
    cdef tuple turn_for(self, long long slot, long long budget)
    @cython.locals(slot=cython.longlong)
    cdef forget_pieces(self)
    cpdef bint is_busy(self, long long slot) except -1
    cdef bint has_no_turn(self, long long slot) except -1
    @cython.locals(slot=cython.longlong, num_free=cython.longlong, late=list)
    cdef await_copies(self)
    cdef list sit_out(self, list slots)
    cdef long long takes_blocks(self, long long slot) except? -1
    cdef long long context_of(self, long long slot) except -1
    @cython.locals(slot=cython.longlong)
    cdef pause(self, list slots)
    @cython.locals(slot=cython.longlong)
    cdef put_out(self, list slots)
    @cython.locals(prefixes=SharedPrefixes, slot=cython.longlong, num_keys=cython.longlong)
    cdef renew_tickets(self, list slots)
    cdef resume_decode(self, long long slot)
    @cython.locals(slot=cython.longlong)
    cdef end_pause(self)
    cdef bint is_short(self) except -1
    @cython.locals(need=cython.longlong, budget=cython.longlong, slot=cython.longlong,
                   new=cython.longlong, lacking=cython.longlong)
    cdef long long cut_pieces(self) except? -1
    cdef long long count_behind(self, long long end) except -1
    @cython.locals(new=cython.longlong)
    cdef long long piece(self, long long slot, long long budget) except -1
    cdef long long num_to_go(self, long long slot) noexcept
    cdef long long num_left(self, long long slot) noexcept
    cdef long long aligned(self, long long slot, found, long long begin, long long new) except -1
    @cython.locals(need=cython.longlong, budget=cython.longlong, slot=cython.longlong,
                   new=cython.longlong, lacking=cython.longlong)
    cdef long long cut_in_order(self)  except? -1
    @cython.locals(new=cython.longlong)
    cdef long long cut(self, long long slot, long long num_tokens, long long budget) except -1
    @cython.locals(other=cython.longlong, piece=cython.longlong, number=cython.longlong)
    cdef bint holds_back(self, long long slot, long long num_tokens, long long new,
                         bint is_loaded) except -1
    @cython.locals(num_known=cython.longlong, is_outgrown=cython.bint, number=cython.longlong,
                   num_served=cython.longlong)
    cdef give_way(self, long long slot, list gone, list outgrown, bint was_served=*)
    cdef long long num_served(self, long long slot) except -1
    @cython.locals(num_kept=cython.longlong, number=cython.longlong)
    cdef bint swap_out(self, long long slot) except -1
    cdef begin_to_go(self, long long slot, long long number)
    cdef swap_in(self)
    cdef begin_return(self, long long slot, long long number, long long num_kept, bint is_prompt)
    @cython.locals(room=cython.longlong)
    cdef bint fits_back(self, long long slot) except -1
    @cython.locals(num_kept=cython.longlong, number=cython.longlong, is_prompt=cython.bint)
    cpdef long long need_to_return(self, long long slot) except -1
    @cython.locals(num_kept=cython.longlong, number=cython.longlong, is_prompt=cython.bint)
    cpdef bring_back(self, long long slot)
    cdef long long num_kept(self, long long slot) except -1
    @cython.locals(num_kept=cython.longlong)
    cpdef tuple to_swap(self, long long slot)
    cdef copy(self, long long slot, bint out, long long number, long long num_tokens)
    cdef wait_first(self, long long slot)
    cdef leave_queue(self, long long slot)
    @cython.locals(slot=cython.longlong)
    cdef long long head(self) except? -1
    @cython.locals(num_unknown=cython.longlong, slot=cython.longlong)
    cdef enter_answers(self)
    @cython.locals(slot=cython.longlong, is_back=cython.bint)
    cdef enter_resumed(self)
    cdef enter_answer(self, chain, long long num_tokens)
    @cython.locals(slot=cython.longlong, end=cython.longlong,
                   number=cython.longlong)
    cdef give_pieces_blocks(self)
    cdef enter_piece(self, long long slot, long long end)
    @cython.locals(slot=cython.longlong, num_seen=cython.longlong)
    cdef begin_pages(self)
    @cython.locals(slot=cython.longlong)
    cdef serve(self, bint had_turns)
    @cython.locals(paged=PagedBlocks, chain=PagedChain, num_computed=cython.longlong,
                   end=cython.longlong, num_slots=cython.longlong)
    cdef have_turn(self, long long slot, long long new)
    cdef note_piece(self, long long slot)
    cdef long long slots_in_turn(self, long long slot, long long end) except -1
    @cython.locals(paged=PagedBlocks, chain=PagedChain, num_seen=cython.longlong)
    cdef decode_turn(self, long long slot, long long context, bint is_ahead)
    @cython.locals(paged=PagedBlocks, chain=PagedChain, is_ahead=cython.bint, slot=cython.longlong,
                   context=cython.longlong, num_seen=cython.longlong, num_known=cython.longlong,
                   wait=cython.longlong)
    cdef serve_decodes(self, long long first, long long last)
    @cython.locals(is_latest=cython.bint)
    cdef long long num_seen(self, long long slot, long long num_computed) except? -1
    @cython.locals(chain=PagedChain, end=cython.longlong)
    cdef long long pages_lacking(self, long long slot, long long num_computed,
                                long long new) except -1
    @cython.locals(slot=cython.longlong, num_tokens=cython.longlong)
    cdef lose_pages(self)
    @cython.locals(slot=cython.longlong)
    cdef admit(self, long long budget)
    @cython.locals(blocks=Blocks, num_tokens=cython.longlong, num_computed=cython.longlong, num_first=cython.longlong, new=cython.longlong,
                   need=cython.longlong, room=cython.longlong, whole=cython.bint, lacks=cython.bint,
                   more=cython.longlong, num_left=cython.longlong, end=cython.longlong,
                   numbers=list, last=cython.longlong)
    cdef long long admit_next(self, long long slot, long long budget) except? -1
    @cython.locals(has_more=cython.bint, may_gain=cython.bint)
    cdef long long be_blocked(self, found, bint whole) except? -1
    @cython.locals(blocks=TieredBlocks, number=cython.longlong, num_tokens=cython.longlong,
                   num_here=cython.longlong, num_first=cython.longlong, reserves=cython.bint,
                   end=cython.longlong)
    cdef bint load(self, long long slot, found, list numbers, long long budget,
                   bint whole) except -1
    @cython.locals(slot=cython.longlong, number=cython.longlong, state=cython.longlong,
                   lacking=cython.longlong, is_loaded=cython.bint)
    cdef long long num_rest(self) except -1
    cdef bint is_before_loaded(self, long long slot) except -1
    @cython.locals(last=cython.longlong, first=cython.longlong)
    cdef bint loses_load(self, long long slot) except -1
    cdef bint comes_back_whole(self, long long slot) except -1
    cdef bint brings_in(self, long long slot, long long num_computed, found) except -1
    cdef long long pad(self, long long slot, long long num_left, long long end, found,
                       long long budget) except? -1
    @cython.locals(in_pieces=cython.bint, number=cython.longlong)
    cdef long long need_to_admit(self, long long slot, found, long long num_first,
                                 bint whole) except? -1
    @cython.locals(slot=cython.longlong, flows=cython.bint, is_held=cython.bint)
    cdef long long next_waiting(self, long long budget) except? -1
    @cython.locals(blocks=Blocks, num_here=cython.longlong, num_first=cython.longlong,
                   number=cython.longlong, is_loaded=cython.bint)
    cdef go_on(self, long long slot, long long new, long long more)
    cpdef long long room(self) except? -1
    @cython.locals(num_tokens=cython.longlong, new=cython.longlong,
                   has_seat=cython.bint, need=cython.longlong, more=cython.longlong)
    cdef long long admit_behind(self, long long slot, long long budget) except? -1
    @cython.locals(slot=cython.longlong, left=cython.longlong)
    cdef long long admit_loaded(self, long long budget) except -1
    @cython.locals(num_here=cython.longlong, num_tokens=cython.longlong)
    cdef long long need_behind(self, long long slot, long long budget) except -1
    cdef long long pad_loaded(self, long long slot, long long new, long long budget) except? -1
    cdef long long next_loaded(self) except? -1
    cdef begin_prompt(self, long long slot, long long num_computed, long long new)
    @cython.locals(num_gaps=cython.longlong, start=cython.double, is_ahead=cython.bint, on_the_spot=cython.bint,
                   seconds=cython.double, wait=cython.double, chunks=tuple)
    cdef begin(self)
    @cython.locals(slot=cython.longlong, is_new=cython.bint)
    cdef note_missing(self, bint all_miss)
    cdef end_missing(self)
    @cython.locals(slot=cython.longlong)
    cdef tuple chunks(self)
    @cython.locals(times=Times, num_keys=cython.longlong)
    cdef double seconds(self, tuple chunks, bint on_the_spot) except? -1
    @cython.locals(longest=cython.longlong, slot=cython.longlong)
    cdef long long longest_context(self) except -1
    @cython.locals(number=cython.longlong, num_growing=cython.longlong, least=cython.longlong,
                   reach=cython.longlong, slot=cython.longlong, context=cython.longlong)
    cdef tuple in_windows(self, long long num_ahead)
    @cython.locals(slot=cython.longlong, num_tokens=cython.longlong)
    cdef find_seen(self)
    @cython.locals(lag=cython.longlong, size=cython.longlong, step=cython.longlong,
                   number=cython.longlong, more=cython.longlong)
    cpdef settle(self)
    @cython.locals(end=cython.double)
    cdef end(self)
    @cython.locals(slot=cython.longlong)
    cdef end_decodes(self)
    @cython.locals(slot=cython.longlong, has_emitted=cython.bint, each=cython.longlong)
    cdef end_pieces(self)
    cdef take_back(self)
    @cython.locals(slot=cython.longlong, ticket=cython.longlong)
    cdef let_flow(self, flow)
    cdef move_out(self, long long ticket, long long slot)
    cpdef pace(self, long long slot, double time, long long num_tokens, long long num_backflows)
    cpdef set_sliders(self, long long max_num_batched_tokens, flow)
    @cython.locals(slot=cython.longlong, first=cython.longlong, last=cython.longlong,
                   last_step="long long[::1]", finished=list)
    cdef finish_decodes(self)
    @cython.locals(slot=cython.longlong, last=cython.longlong, each=cython.longlong)
    cdef list in_order_of_joining(self, list slots)
    cdef emit(self, long long slot)
    cdef finish(self, long long slot)
    cdef bint gives_up(self, long long slot) except -1
    @cython.locals(slot=cython.longlong)
    cdef end_given_up(self)
    cdef note_left(self, long long slot, long long how)
    cdef bint is_before(self, double time, long long phase) noexcept
    cdef bint is_due_before(self, double time, long long phase) noexcept
    cdef bint lags(self) noexcept
    cdef bint is_seen(self) except -1
    cpdef tuple story(self, long long slot)
    @cython.locals(slot=cython.longlong)
    cpdef list members(self)
    cpdef bint is_leaving(self, long long slot) except -1
    cpdef bint is_decoding(self, long long slot) except -1
    @cython.locals(state=cython.longlong)
    cpdef bint is_waiting(self, long long slot) except -1
    cpdef long long queued_tokens(self, long long slot) except -1
    cpdef forget_brought(self, long long slot)
    cdef have_brought(self, long long slot)
    cpdef long long num_asked(self, long long slot) except -1
    @cython.locals(number=cython.longlong, slot=cython.longlong)
    cpdef long long num_entries(self) except -1
    cpdef long long num_in_use(self) except -1
    @cython.locals(slot=cython.longlong, num_computed=cython.longlong)
    cpdef list prompts(self)
    cpdef long long score(self) except -1
    @cython.locals(number=cython.longlong)
    cdef long long num_waiting(self) except -1
    cdef long long num_running(self) except -1
    cpdef long long num_inside(self) except -1
    @cython.locals(before=cython.longlong)
    cdef make_room(self)
    cdef bint skip(self, double until) except -1
