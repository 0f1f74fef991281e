"""Take a folder of documents through a pipeline, as one group that watches its failures and cost.

    $ python examples/group_document_pipeline.py papers --make 40
    stopped: 3 documents failed, … of 40 are done
      papers/….txt: section 3 is empty
      papers/….txt: section 3 is empty
      papers/….txt: section 3 is empty
    … calls of the model, … tokens, … cents
    $ python examples/group_document_pipeline.py papers --repair
    40 of 40 documents are done
    160 calls of the model, 12,800 tokens, 2.56 cents

Each document is a run of two steps: read and split it, then ask a model about each section (here a
pause that costs tokens) and put the answers together. When `--stop-after` documents have failed,
the group stops, before a whole folder of broken ones costs money; mend what is wrong, and run it
again: only what failed or never began is run. Answers that are paid for are kept as memos: kill it
with kill -9 at any moment, run it again, and no section is asked about that was answered before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import TypeAdapter

from taquba import Queue
from taquba.workflow import (
    Continue,
    Fail,
    GroupMember,
    GroupStatus,
    Outcome,
    Step,
    Succeed,
    WorkflowRuntime,
)

SECTIONS = 4
WORDS = 20
"""In each section of the documents that `--make` writes."""
TOKENS_A_WORD = 4
CENTS_A_TOKEN = 0.0002


@dataclass(frozen=True, slots=True)
class Spent:
    """What the model cost, for a section, a document or all of them."""

    calls: int = 0
    tokens: int = 0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.calls + other.calls, self.tokens + other.tokens)

    def __str__(self) -> str:
        cents = self.tokens * CENTS_A_TOKEN
        return f"{self.calls} calls of the model, {self.tokens:,} tokens, {cents:.2f} cents"


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model says of a section."""

    longest: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Report:
    """What is known of a document in the end."""

    longest: str
    spent: Spent


REPORT = TypeAdapter(Report)


async def pipeline(step: Step) -> Outcome:
    """Run one step of a document. Its input is the path, so that a mended file can run again."""
    return await split(step) if step.number == 0 else await ask(step)


async def split(step: Step) -> Outcome:
    path = Path(step.payload.decode())
    try:
        text = (await asyncio.to_thread(path.read_bytes)).decode()
    except (OSError, UnicodeDecodeError) as error:
        return Fail(f"it cannot be read: {error}")
    return Continue(json.dumps(text.split("\n\n")).encode())


async def ask(step: Step) -> Outcome:
    sections: list[str] = json.loads(step.payload)
    answers: list[Answer] = []
    for number, section in enumerate(sections):
        if not section.strip():
            return Fail(f"section {number} is empty")
        # A memo is kept even if this step is interrupted: the section is paid for once.
        call = partial(model, section)
        answers.append(await step.memo.memoized(f"section {number}", call, type=Answer))
    spent = Spent(len(answers), sum(answer.tokens for answer in answers))
    longest = max((answer.longest for answer in answers), key=len)
    return Succeed(REPORT.dump_json(Report(longest, spent)))


async def model(section: str) -> Answer:
    """Stand in for a real one: slow, and not free."""
    await asyncio.sleep(0.02)
    words = section.split()
    return Answer(longest=max(words, key=len), tokens=TOKENS_A_WORD * len(words))


class Counters:
    """One line that changes on a terminal: members that ended, and what they cost so far."""

    def __init__(self) -> None:
        self.spent = Spent()

    def progress(self, status: GroupStatus) -> None:
        if sys.stderr.isatty():
            line = (
                f"{status.succeeded} of {status.total} done, {status.failed} failed; {self.spent}"
            )
            print(f"\r\x1b[2K{line}", end="\n" if status.is_finished else "", file=sys.stderr)


def make(folder: Path, count: int) -> None:
    folder.mkdir(exist_ok=True)
    for number in range(count):
        write(folder / f"{number:04}.txt", is_broken=number % 8 == 7)


def repair(folder: Path) -> None:
    for path in folder.glob("*.txt"):
        write(path, is_broken=False)


def write(path: Path, *, is_broken: bool) -> None:
    sections = [" ".join(["word"] * WORDS)] * SECTIONS
    path.write_text("\n\n".join([*sections[:-1], " "] if is_broken else sections))


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="its .txt files are the documents")
    parser.add_argument("--make", metavar="N", type=int, help="first write N, of which some fail")
    parser.add_argument("--repair", action="store_true", help="first mend those")
    parser.add_argument("--stop-after", metavar="N", type=int, default=3, help="failures (3)")
    parser.add_argument("--store", default="papers-state", help="folder or URL of the state")
    options = parser.parse_args()
    folder: Path = options.folder
    if options.make is not None:
        make(folder, options.make)
    if options.repair:
        repair(folder)

    async with (
        Queue.open(options.store) as queue,
        WorkflowRuntime(queue, pipeline, concurrency=8) as runtime,
    ):
        group = runtime.group("papers", stop_after_failures=options.stop_after)
        paths = sorted(folder.glob("*.txt"))
        members = [GroupMember(str(path), str(path).encode()) for path in paths]
        await group.submit(members, max_attempts=100)  # a kill costs each running step one

        counters = Counters()
        failures: list[str] = []
        async for end in group.results(progress=counters.progress):
            if end.outcome.result is not None:
                counters.spent += REPORT.validate_json(end.outcome.result).spent
            elif end.outcome.error is not None:
                failures.append(f"  {end.key}: {end.outcome.error}")
        status = await group.status()

    if status.is_stopped:
        print(
            f"stopped: {status.failed} documents failed, "
            f"{status.succeeded} of {status.total} are done"
        )
    else:
        print(f"{status.succeeded} of {status.total} documents are done")
    print("\n".join([*sorted(failures), str(counters.spent)]))


if __name__ == "__main__":
    asyncio.run(main())
