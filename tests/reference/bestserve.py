"""Algorithms 2 to 7 of BestServe as they are printed, line by line, with their corrections.

Nothing is clever here: lists are searched, and time advances from event to event. Corrections and
readings are marked; docs/background/bestserve.md says why. Random orders come from `order`, once
in each pass over the instances.
"""

from math import floor, inf


class Instance:
    def __init__(self, num_boxes):
        self.status = "decode"  # reading: nothing has been suspended yet
        self.when_idle_prefill = 0.0
        self.when_idle = [0.0] * num_boxes
        self.request = [None] * num_boxes  # whose answer a box has


def batch(waiting, arrival, most, now):
    """BATCH: those that have arrived, first come first served."""
    return [r for r in waiting if arrival[r] <= now][:most]


def pseudo_batch_size(others, tau):
    """Equation 9; the bars are read as a floor, without which table 4 has no P90 = P99."""
    return max(floor((others + 1) / tau), 1)


def cached(prompt, output):
    """Tokens in the cache before the last step: table 3b has 2,048 + 63 with the newest one."""
    return max(prompt + output - 2, prompt)


def simulate_prefill(arrival, prompts, num_instances, most, times, order):
    """Algorithm 2."""
    departure = [inf] * len(arrival)
    waiting = list(range(len(arrival)))
    instances = [Instance(0) for _ in range(num_instances)]
    now = 0.0
    while waiting:
        for number in order.next():
            instance = instances[number]
            if instance.when_idle_prefill <= now:
                together = batch(waiting, arrival, most, now)
                if together:
                    latency, busy = times.prefill(tuple(prompts[r] for r in together))
                    for r in together:
                        departure[r] = now + latency
                        waiting.remove(r)
                    instance.when_idle_prefill = now + busy
                    order.took(number)
        if waiting:
            # Printed: max(T_idle, A[R[0]]), where T_idle leaves idle instances out and is infinite
            # when all are idle. So: whoever is idle waits for nobody but the next arrival.
            idle_at = min(instance.when_idle_prefill for instance in instances)
            now = max(now, idle_at, arrival[waiting[0]])
    return departure


def simulate_decode(ready, outputs, context, num_instances, num_boxes, times, tau, order):
    """Algorithm 3."""
    departure = [inf] * len(ready)
    waiting = list(range(len(ready)))
    instances = [Instance(num_boxes) for _ in range(num_instances)]
    now = 0.0
    while waiting:
        for number in order.next():
            instance = instances[number]
            idle = [j for j, time in enumerate(instance.when_idle) if time <= now]
            if idle and waiting and ready[waiting[0]] <= now:  # printed: <, which misses its event
                r = waiting[0]
                others = sum(time > now for time in instance.when_idle)
                # Printed: the time of one step; a request takes as many as it has tokens.
                seconds = outputs[r] * times.decode(pseudo_batch_size(others, tau), context[r])
                departure[r] = now + seconds
                waiting.remove(r)
                instance.when_idle[idle[0]] = now + seconds
                order.took(number)
        if waiting:
            # As in Algorithm 2: the next arrival, or the first box where none is idle.
            idle_at = min(time for instance in instances for time in instance.when_idle)
            now = max(now, idle_at, ready[waiting[0]])
    return departure


def simulate_apart(arrival, prompts, outputs, strategy, times, tau, orders):
    """Section 3.4.3: what Algorithm 2 returns, sorted, arrives at Algorithm 3."""
    prefilled = simulate_prefill(
        arrival, prompts, strategy.prefill, strategy.prefill_batch, times, orders[0]
    )
    done = list(prefilled)
    decodes = [r for r in range(len(arrival)) if outputs[r] > 1]  # one token has nothing to decode
    decodes.sort(key=lambda r: prefilled[r])
    found = simulate_decode(
        [prefilled[r] for r in decodes],
        [outputs[r] for r in decodes],
        [cached(prompts[r], outputs[r]) for r in decodes],
        strategy.decode,
        strategy.decode_batch,
        times,
        tau,
        orders[1],
    )
    for r, time in zip(decodes, found, strict=True):
        done[r] = time
    return prefilled, done


class Collocation:
    """Algorithms 4 to 7."""

    def __init__(self, arrival, prompts, outputs, strategy, times, tau, order):
        self.arrival, self.prompts, self.outputs = arrival, prompts, outputs
        self.strategy, self.times, self.tau, self.order = strategy, times, tau, order
        self.instances = [Instance(strategy.decode_batch) for _ in range(strategy.together)]
        self.d1 = [inf] * len(arrival)
        self.d2 = [inf] * len(arrival)
        self.p = list(range(len(arrival)))
        self.q = []
        self.s = []  # [when, number of the instance]
        self.now = 0.0

    def run(self):
        """Algorithm 4."""
        while self.p or self.q or self.s:
            self.s.sort()
            match self.what_comes_next():
                case "prefill":
                    self.process_prefill()
                case "decode":
                    self.process_decode()
                case "resume":
                    _, number = self.s.pop(0)
                    self.instances[number].status = "decode"
        return self.d1, self.d2

    def what_comes_next(self):
        """Undefined in the paper. Reading: what is possible first; of two, prompts come first."""
        events = []
        if self.p:
            possible = min(self.time_of(i, "prefill") for i in self.instances)
            events.append((max(self.now, self.arrival[self.p[0]], possible), 0, "prefill"))
        if self.s:
            events.append((max(self.now, self.s[0][0]), 1, "resume"))
        if self.q:
            possible = min(self.time_of(i, "decode") for i in self.instances)
            events.append((max(self.now, self.d1[self.q[0]], possible), 2, "decode"))
        self.now, _, kind = min(events)
        return kind

    def time_of(self, instance, kind):
        """When an instance is available as Algorithm 5 says, if nothing happens to it before."""
        match instance.status, kind:
            case "prefill", "prefill":
                return instance.when_idle_prefill
            case "decode", "decode":
                return min(instance.when_idle)
            case "decode", "prefill":
                return 0.0
            case "prefill", "decode":
                return max(instance.when_idle_prefill, min(instance.when_idle))

    def process_prefill(self):
        """Algorithm 6."""
        for number in self.order.next():
            instance = self.instances[number]
            if self.time_of(instance, "prefill") <= self.now:
                together = batch(self.p, self.arrival, self.strategy.prefill_batch, self.now)
                latency, busy = self.times.prefill(tuple(self.prompts[r] for r in together))
                for r in together:
                    self.d1[r] = self.now + latency
                    self.p.remove(r)
                    if self.outputs[r] > 1:
                        self.q.append(r)
                    else:
                        self.d2[r] = self.d1[r]
                self.q.sort(key=lambda r: (self.d1[r], r))  # correction: D1 in order
                instance.when_idle_prefill = self.now + busy
                if instance.status == "decode":
                    instance.status = "prefill"
                    self.s.append([self.now + busy, number])
                else:
                    self.s = [[self.now + busy, n] if n == number else [t, n] for t, n in self.s]
                self.delay_decodes(instance, busy)
                self.order.took(number)
                break

    def delay_decodes(self, instance, seconds):
        """Correction: lines 15 and 17 have to push `when_idle` and D2 of who is suspended."""
        for j, time in enumerate(instance.when_idle):
            if time > self.now:
                instance.when_idle[j] = time + seconds
                self.d2[instance.request[j]] = time + seconds

    def process_decode(self):
        """Algorithm 7."""
        for number in self.order.next():
            instance = self.instances[number]
            if self.time_of(instance, "decode") <= self.now:
                r = self.q.pop(0)
                others = sum(time > self.now for time in instance.when_idle)
                size = pseudo_batch_size(others, self.tau)
                step = self.times.decode(size, cached(self.prompts[r], self.outputs[r]))
                box = next(j for j, time in enumerate(instance.when_idle) if time <= self.now)
                self.d2[r] = self.now + self.outputs[r] * step
                instance.when_idle[box], instance.request[box] = self.d2[r], r
                self.order.took(number)
                break
