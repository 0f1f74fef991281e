"""The edge cases of the original workflow runtime that this one was compared with, in a few words.

Areas have names, and their lines are numbered from 1: the third line of "SUB" is SUB-03. A test
that shows what becomes of a line here says so at the beginning of its docstring, as in
``\"\"\"SUB-03, CAN-14: …\"\"\"``.
"""

from __future__ import annotations

_AREAS = {
    "SUB": """
        no id given; active run again; active run with another input; job of a later step;
        another input after a restart; three at once; while step 0 is claimed; ended run;
        cancelled run; duplicate with effects; mismatch with effects; duplicate with other
        settings; reserved header; header that looks reserved; reserved header of an effect's
        job; effect on the runtime's queue; effect on a key of the runtime's; expiry entry among
        such keys; deletes and expiry entries of a submission; key written and deleted; oversized
        effect; oversized effect of a duplicate; reserved header of a duplicate; malformed run
        ids; longest run id; malformed run id that was stored; letters beyond ASCII; later start;
        start in the past; settings reach each step; attempts of a step; empty input; input whose
        object is gone; run whose job is unknown; two runtimes and one run id
    """,
    "STEP": """
        one step succeeds; three steps; headers; delay has not passed; delay has passed; delay of
        nothing; fails on purpose; cancels itself; permanent error; transient error at the only
        attempt; transient error three times; transient error, then success; retry leaves the
        run's records; last attempt; claim lost before the successor; settled twice; ends another
        way on redelivery; job without a run; malformed step number; malformed group; run record
        is missing; requeued after the end; requeued before the end; result cannot be written;
        result cannot be written on the last attempt; result of a dead step cannot be written;
        lease extended; lease outlived; detached step; unexpected exception
    """,
    "STAT": """
        unknown; queued; claimed; backing off or waiting; cancel requested; ended; long ended; job
        removed from below; advances between two reads; ends between two reads; fresh runtime;
        view from outside; view without the memo store; wait for the unknown; wait from the start;
        wait for an ended run; wait that gives up; several waiters; wait for a dead step; outcome
        of an earlier life; result of an earlier life; cancelled while pending; cancelled at the
        claim; result of a lost settlement; undecodable records; dead step
    """,
    "CAN": """
        pending run; committed before the hook; one notification; cancelled twice; unknown run;
        ended run; running step; step then succeeds; step then continues; step then fails for
        good; step then fails; step heeds the token; step's own cancel has effects; runner fires
        its token; too late for a continue; too late for a success; request survives a restart;
        status after a restart; running step cancelled twice; step in backoff; delayed step;
        waiting for a signal; signal after that; dead step; lease expires with attempts left;
        lease expires on the last attempt; token of a redelivery; cancel races the claim; cancel
        races the end; other runs; lease cannot be extended
    """,
    "SIG": """
        wakes a waiter; leaves nothing behind; waiter survives a restart; timeout; before the
        waiter; two before the waiter; cleared; second waiter; first waiter is unharmed; effects
        of the second waiter; buffered beside a waiter; stale waiter; empty key; empty payload;
        largest payload; odd keys; retry of a woken step; retry of a step that took a buffered
        one; retry after a timeout that took one; retry after a timeout that took none; wake races
        promotion; replaced while a waiter registers; same key again; two waiters at once;
        cancelled before its step began; dead with a payload; payload of an earlier life;
        cancelled after its timeout; nobody waits; loop on one key; step after the woken one;
        first step; timeout of nothing; two runtimes; timeout while nobody is there
    """,
    "MEM": """
        get and put; empty value; steps and runs are apart; run memo is apart; odd keys; computed
        once; computation fails; undecodable value; unencodable value; by content; content that
        cannot be encoded; where values are; two handles on one store; cleared run; cleared whole;
        read by a retry; read by a later step; kept of a cancelled step; read by a later life; two
        computations at once; reserved key; clearing fails in part
    """,
    "REP": """
        continue after a crash; end after a crash; damaged record; effects of a record; rest of a
        delay; rest of a timeout; errors are not recorded; cancelled steps are not recorded;
        cancelled after the record; other payload; record cannot be written; switched off; failure
        of an earlier life
    """,
    "EFF": """
        seen by the next step; not seen by its own step; reserved key; largest value; key put and
        deleted; last put counts; refused effect spares others; used after the end; clone of the
        handle; which ends apply them; claim lost; staged again; detached effects; detached reads
    """,
    "HOOK": """
        no hook; hook that observes some; effects of a hook; hook fails once; hook fails for good;
        hook fails to its limit; settings of the notification; settings after a cancel; sealed
        effects; effects on the runtime's queue; lease expired at the limit; crashed at the limit;
        id used again beside an old dead job; dead job without an error; record unreadable on the
        last attempt; member of a group; reconciled twice; crash after the hook; webhook; webhook
        without a URL; body of a failure; second life before the first notification
    """,
    "RET": """
        kept for ever; each end has its time; to the millisecond; young ones stay; active ones
        stay; id used again and active; id used again and ended; malformed markers; window of
        nothing; ends of earlier processes; pass that fails in part; swept run; end of a cancelled
        run
    """,
    "WRK": """
        shut down during a step; handle is dropped; one slot; no slot; two workers; manual clock;
        clock of its own; idle worker wakes; claiming fails; shut down at once; killed during a
        step; windows of two runtimes; cancelled through another runtime; groups of two runtimes
    """,
    "GRP": """
        two members; duplicate keys; other set, order or input; other options; members of two steps;
        retried member; settings reach each member; failed member again; active member resumed;
        unknown group; results twice; member never submitted; new life ends outside a worker;
        cancelled group; cancelled member again; member's id submitted directly; active group
        forgotten; submission during forget; forgotten group; unknown group forgotten; retention
        after full read; results never read; submitted after its marker; member ended after its
        marker; same keys in two groups; odd keys; no members; more than a few at once; more than
        a thousand; status in a view; undecodable member record; step that fans out
    """,
    "JOB": """
        no key; key of a pending job; key with another payload; key of a succeeded job; key of a
        failed job; key of a cancelled job; ended key with another job; key after retention; result
        after retention; unregistered name; fails to its limit; permanent failure; fails once after
        a memo and an effect; output not encodable; input not decodable; awaited after the end;
        wait that gives up; swept job; later start; lease expires; same name twice; missing state;
        two states of one type; precedence of limits; reserved header; key by payload; submits
        children; memos cleared; group with a failure; unkeyed group jobs; duplicate keys in a
        group; limit of a job in a group; alone and in a group; memo retention of a group
    """,
}

LINES = {
    f"{area}-{number:02}": " ".join(words.split())
    for area, text in _AREAS.items()
    for number, words in enumerate(text.split(";"), 1)
}
"""Every line, by its id."""
