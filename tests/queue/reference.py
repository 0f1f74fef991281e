"""The edge cases of the original queue that this one was compared with, in a few words each.

An area has a letter, and its lines are numbered from 1: the third line of "A" is A3. A test that
shows what becomes of a line here says so at the beginning of its docstring, as in
``\"\"\"A3, A14: …\"\"\"``.
"""

from __future__ import annotations

_AREAS = {
    "A": """
        claim of an empty queue; first claim of a job; form of a generated id; an id of one's own;
        malformed ids; longest id; id that is taken; id taken on another queue; id used again;
        id of an ended job that is kept; taken id with effects; race for one id;
        ids while the clock stands; ids while the clock goes back; id drawn beforehand;
        longest queue name; queue names count in bytes; configured name too long; headers;
        empty payload; attempts chosen at enqueue; crash right after an enqueue
    """,
    "B": """
        order one by one; order in a batch; order of priorities; order within a priority;
        extreme priorities; queues are apart; a name that begins another; retry keeps its priority;
        retry keeps its place; priority is stored; promoted behind a higher priority;
        higher priority after claims; default priority of a queue
    """,
    "C": """
        hit while pending; hit keeps the first payload; hit while scheduled; hit after promotion;
        key ends at the claim; key ends at a claim by id; key ends at a cancellation;
        later claims spare a newer holder; no key in backoff; cancelling spares a newer holder;
        no key on a claimed record; keys are apart by queue; no key after a revival;
        hit goes before a taken id; race for one key; key after a claim that was lost
    """,
    "D": """
        scheduled job is not claimable; due at once; due to the millisecond; idle promotion reads
        nothing; promotion after an idle pass; backoff after an idle pass; promoted record;
        wake with bytes; wake without bytes; wake in other states; wake of an unknown job;
        wake after promotion; wake survives retries; wake out of a backoff; second wake erases
        bytes; wake races promotion; wake ends a wait; promotion over several queues
    """,
    "E": """
        batches of claims; batch of none; claim after empty polls; claims after a drained queue;
        claim after a partial batch; nacked after an empty poll; requeued before later ones;
        many producers and consumers; insert below a claim in flight; race for one job;
        queues do not wait for each other; claim by id out of order; claim by id before its time;
        claim by id in other states; lease of a claim by id; lease of the queue's configuration;
        dropped claim; three wait for one; three wait for two; enqueued before the wait;
        stale wake-up; wait without jobs; a record is no claim; cancel races a claim
    """,
    "F": """
        lease of nothing; live lease; acknowledged before expiry; expiry at the very moment;
        expiry of the last attempt; expiry with and without attempts left; stale claim after a
        requeue; stale claim after a death; stale claim after another claim; settled although
        overdue; renewed lease; renewed and acknowledged; shortened lease; margin that fits;
        margin that counts; extension of an ended claim; no extension once cancelled;
        handle that is detached; renewal of what is being reaped; undecodable record in the way;
        registry that was tampered with; record after an expiry; one lease for each claim;
        listing order under renewal; no backoff after an expiry; expiry of what is not claimed
    """,
    "G": """
        claim held at close; last attempt held at close; claim that was not stored; what was
        acknowledged survives; interrupted on several queues; order after a close; drained, closed,
        opened; priority after a close; crash after a clean close; undecodable cursor;
        cursor that cannot be saved; second writer; interrupted while an ack stalls; log on a store
        of its own; no backoff after an interruption
    """,
    "H": """
        ack removes; ack keeps; second ack; nack counts; nack of the last attempt; nack backs off;
        backoff ends; backoff doubles up to its maximum; no backoff; maximum below the base;
        huge attempt numbers; dead letter at once; no attempts at all; last error of a done job;
        one moment for each settlement; nack races the reaper; backoff of each queue
    """,
    "I": """
        revival; revival in other states; revival of the unknown; revival races the sweep;
        age of a revived job; window of a second death; dead jobs in pages; race of two revivals
    """,
    "J": """
        effects of an ack; effects of a lost claim; dedup hit among effects; effects of a dead
        letter; effects of a retry; effects of the last nack; effects of a removal; effects of a
        request to cancel; effects of a vain cancel; key put and deleted; oversized value among
        effects; malformed job among effects; taken id among effects; scheduled job among effects;
        follow-up on the same queue; commit of effects alone; dedup hit with effects;
        enqueue with effects; enqueue with an oversized value; no effects of an expiry;
        one key twice in a set; cancel replaces a holder; crash during an ack with effects
    """,
    "K": """
        put, get, delete; compare and delete; compare with absence; compare with presence;
        oversized value; counter by compares; compare that does not match; compare that matches;
        compare without enqueues; two compares; compare of what is not written; scan shows caller's
        keys only; keys that look internal; scan in pages; scan within bounds; bounds outside the
        prefix; empty ranges; descending scan; lazy entries; keys after a crash; compares in an
        outage; empty value
    """,
    "L": """
        pass over due entries; deletion with effects; conditional deletion; kept entries;
        effects that fail; pass left midway; nothing can be due; entry during a pass; entry among
        dropped effects; entry written behind its back; malformed key; parsing a key
    """,
    "M": """
        large payload; threshold; switched off; retry keeps its object; ack removes the object;
        kept job keeps its object; revival keeps the object; death keeps the object; cancel removes
        the object; dedup hit removes the new object; taken id removes the new object; write fails;
        write fails in a batch; delete fails; batch of sizes; scheduled and large; store of its
        own; object is missing; effects that are dropped; effects in part; listings lack payloads
    """,
    "N": """
        cancel of a waiting job; cancel of a claimed job; token wakes its handler; cancel in vain;
        cancelled, expired, claimed; cancelled, nacked, claimed; cancelled and acknowledged;
        cancelled, dead, revived; token of the newest claim; cancelled twice; cancel after an
        expiry; cancel races a settlement; history goes with a cancelled job
    """,
    "O": """
        wait for the unknown; wait times out; wait for an ack; ended before the wait; wait for a
        death; wait for a removal; wait through a request to cancel; wait through retries; four
        waiters; waiters are apart; payload of what ended; removed between two looks; wait given up
    """,
    "P": """
        handler succeeds; handler fails for good; handler fails; effects of a handler; failure for
        good with effects; failure with effects; lease lost in a handler; lease extended in a
        handler; stopped while at work; stopped before it began; concurrency; concurrency of none;
        stopped with several under way; one task crashes; claiming fails; idle worker wakes;
        dropped worker
    """,
    "Q": """
        keeping is by queue; age counts from the end; window of dead jobs; windows of dead jobs by
        queue; windows of done jobs by queue; sweeps leave the counter; no window; history of a
        done job; no history without a record; history of a death; history of a revival; history of
        expiries; history of the unknown
    """,
    "R": """
        statistics; names of queues; pages of pending jobs; order of scheduled jobs; pages among
        queues; foreign cursor; listing of dead jobs; cursor of what moved; reader sees what the
        writer does; reader disturbs nobody; reader of nothing; reader without the log; reader
        misses an object; heartbeat; heartbeat of a clean close; no heartbeat; position moves;
        clock of the queue; sampled depth; renewals are counted
    """,
    "S": """
        expressions; display; names; reserved headers; start on an occurrence; a jump; a jump with
        backfill; restart with backfill; lookback; no watermark; replay and live; stop in a replay;
        job that exists; enqueue fails; malformed watermark; headers of a firing; replace all;
        unschedule; stopped; mock clock; never due; priority and attempts
    """,
    "T": """
        request; defaults; malformed request; statuses; no connection; timeouts; lease covers the
        timeout; claim lost before sending; delivery id; foreign headers; request among effects;
        long error bodies
    """,
}

LATER = {
    "S": "schedules are a front end of the queue, and no part of it",
    "T": "webhooks are a front end of the queue, and no part of it",
}
"""Areas of packages that stand on the queue."""

LINES = {
    f"{area}{number}": " ".join(words.split())
    for area, text in _AREAS.items()
    for number, words in enumerate(text.split(";"), 1)
}
"""Every line, by its id."""
