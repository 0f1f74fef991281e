"""Count the words of a folder's files: one run for each file, all of them one group.

    $ python examples/group_word_count.py --make texts --store state
    3 of 4 files counted, 1 failed
    texts/broken.txt: it is no text
    the 5,  fox 2,  dog 1
    $ python examples/group_word_count.py texts --store state
    3 of 4 files counted, 1 failed (3 from before)
    texts/broken.txt: it is no text
    the 5,  fox 2,  dog 1

The id of the group is made of the files' names and contents, so that the same folder is the same
group. Submitting it again runs only what has failed; the results of the others are there already.
Stop it at any moment, with kill -9 too, and run it again: it goes on where it was.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from taquba import Queue
from taquba.workflow import Fail, GroupMember, Outcome, Step, Succeed, WorkflowRuntime
from taquba.workflow.progress import group_progress

TEXTS = {
    "broken.txt": b"\xff\xfe\xfd",
    "dog.txt": b"The quick brown fox jumps over the lazy dog.",
    "fox.txt": b"The fox has left the garden.",
    "sun.txt": b"The sun.",
}


async def count_words(step: Step) -> Outcome:
    """One file: its content is the input, so that it cannot change behind the run's back."""
    try:
        text = step.payload.decode()
    except UnicodeDecodeError:
        return Fail("it is no text")
    await asyncio.sleep(0.01)  # something slow
    return Succeed(json.dumps(Counter(re.findall(r"\w+", text.lower()))).encode())


def members(folder: Path) -> Iterator[GroupMember]:
    """Read one after the other, and submitted as they are read: they are never all in memory."""
    for path in sorted(folder.glob("*.txt")):
        yield GroupMember(key=path.as_posix(), input=path.read_bytes())


def name_of(folder: Path) -> str:
    digest = hashlib.sha256()
    for member in members(folder):
        digest.update(f"{member.key}\0{hashlib.sha256(member.input).hexdigest()}\n".encode())
    return f"words-{digest.hexdigest()[:20]}"


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, help="count the words of its .txt files")
    parser.add_argument("--make", metavar="FOLDER", type=Path, help="make one to try it with")
    parser.add_argument("--store", default="words-state", help="folder or URL of the state")
    options = parser.parse_args()
    folder: Path = options.folder or options.make or parser.error("give a folder, or --make")
    if options.make is not None:
        options.make.mkdir(exist_ok=True)
        for name, content in TEXTS.items():
            (options.make / name).write_bytes(content)

    async with (
        Queue.open(options.store) as queue,
        WorkflowRuntime(queue, count_words, concurrency=8) as runtime,
    ):
        group = runtime.group(name_of(folder))
        earlier = (await runtime.group_status(group.group_id)) is not None
        before = (await group.status()).succeeded if earlier else 0
        await group.submit(members(folder))

        words: Counter[str] = Counter()
        failures: list[str] = []
        with group_progress("files") as progress:
            async for end in group.results(progress=progress):
                if end.outcome.result is None:
                    failures.append(f"{end.key}: {end.outcome.error}")
                else:
                    words.update(json.loads(end.outcome.result))
        status = await group.status()

    print(
        f"{status.succeeded} of {status.total} files counted, {status.failed} failed"
        + (f" ({before} from before)" if before else "")
    )
    for line in sorted(failures):
        print(line)
    print(",  ".join(f"{word} {words[word]}" for word in ("the", "fox", "dog")))


if __name__ == "__main__":
    asyncio.run(main())
