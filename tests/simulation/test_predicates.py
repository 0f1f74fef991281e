"""What no planted fault brings about, shown to the predicates themselves."""

from __future__ import annotations

from typing import Any

from tests.simulation import stack_invariants as must
from tests.simulation.shadow import COLUMNS, Change, Row, Step, Table
from tests.simulation.stack_invariants import Op, Seen


def op(number: int, order: int = 0, **more: object) -> Op:
    return Op(number=number, owner="p0", epoch=1, kind="put", order=order, **more)


def step(seq: int, *numbers: int) -> Step:
    rows = [(op(number).marker, b"") for number in numbers]
    return Step(seq, 1, float(seq), [Change("kv", (row[0],), None, row) for row in rows])


def job(**values: object) -> Row:
    row: dict[str, Any] = dict.fromkeys(COLUMNS["jobs"])
    row |= {"id": "j", "queue": 1, "state": 0, "attempts": 0, "max_attempts": 3, "payload": b"1:0"}
    return tuple((row | values).values())


def test_commits_keep_their_order_and_leave_no_hole() -> None:
    first, second = op(1, order=1), op(2, order=2)
    assert not must.reordered([step(7, 1), step(8, 2)], [first, second])
    assert not must.reordered([step(7, 2, 1)], [first, second])
    assert not must.reordered([step(7, 1)], [first, second])
    assert "before an earlier one" in must.reordered([step(7, 2), step(8, 1)], [first, second])
    assert "not 1 before it" in must.reordered([step(7, 2)], [first, second])


def test_a_commit_is_there_once() -> None:
    assert not must.doubled([step(7, 1), step(8, 2)])
    assert must.doubled([step(7, 1), step(8, 1)]) == "more than once in the log: [1]"


def test_nothing_is_acknowledged_after_the_end() -> None:
    late = op(1, acknowledged_at=5.0)
    assert not must.acknowledged_after_failure(late, None)
    assert not must.acknowledged_after_failure(late, 5.0)
    assert "acknowledged after p0 stopped" in must.acknowledged_after_failure(late, 4.9)


def test_an_entry_holds_commits_of_one_epoch() -> None:
    stranger = Op(number=1, owner="p1", epoch=2, kind="put")
    assert not must.foreign(step(7, 1), {1: op(1)})
    assert "of epoch 1 holds commit 1 of 2" in must.foreign(step(7, 1), {1: stranger})


def test_a_follower_never_goes_back() -> None:
    there = [Seen("f0", 1.0, 5, {}), Seen("f1", 2.0, 3, {}), Seen("f0", 3.0, 6, {})]
    assert not must.went_back(there)
    assert must.went_back([*there, Seen("f0", 4.0, 5, {})]) == "f0 went from 6 back to 5"


def test_pairs_are_written_together() -> None:
    left = Change("kv", (b"pair/left",), None, (b"pair/left", b"1"))
    right = Change("kv", (b"pair/right",), None, (b"pair/right", b"1"))
    assert not must.torn(Step(7, 1, 0.0, [left, right]), {})
    assert "belong together" in must.torn(Step(7, 1, 0.0, [left]), {})


def test_jobs_do_not_come_go_die_or_rise_by_themselves() -> None:
    def complaint(before: Row | None, after: Row | None) -> str:
        return must.unfounded(Step(7, 1, 0.0, [Change("jobs", (1,), before, after)]), {})

    assert "came without its commit" in complaint(None, job())
    assert "went from state 0" in complaint(job(), None)
    assert "is done without" in complaint(job(state=2), job(state=3))
    assert "died without a reason" in complaint(job(state=2), job(state=4, last_error="?"))
    assert "rose from the dead" in complaint(job(state=4), job())
    assert "it was done" in complaint(job(state=3), job())
    worn = job(state=4, attempts=3, last_error="lease expired")
    assert not complaint(job(state=2, attempts=3), worn)
    assert not complaint(job(state=4), None)
    assert not complaint(job(state=2, attempts=3), None)
    assert "went from state 2" in complaint(job(state=2, attempts=2), None)
    assert not complaint(job(state=2), job())


def test_a_job_is_in_one_state_and_has_what_belongs_to_it() -> None:
    def complaint(**values: object) -> str:
        return must.misshapen(Change("jobs", (1,), None, job(**values)))

    assert not complaint()
    assert not complaint(state=1, run_at=5)
    assert not complaint(state=2, claimed_at=5, attempts=1)
    assert complaint(state=5)
    assert complaint(state=1)
    assert complaint(run_at=5)
    assert complaint(state=2)
    assert complaint(attempts=4)


def test_counters_are_compared_with_jobs() -> None:
    queues: Table = {(1,): (1, "a", 2, 0, 0, 0, 0)}
    assert not must.miscounted(step(7), {(1, 0): 2}, queues)
    assert "says pending 2, and has 1" in must.miscounted(step(7), {(1, 0): 1}, queues)
    assert "queue 2 says dead 0, and has 1" in must.miscounted(
        step(7), {(1, 0): 2, (2, 4): 1}, queues
    )
