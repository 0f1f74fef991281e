"""How long `import taquba` takes, and what it loads.

    python benchmarks/import_time.py [--smoke] [--check]

Each figure is the median over fresh processes, of the import alone. Prints one JSON line.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

from _common import Report, options

_CHILD = """
import sys, time
started = time.perf_counter()
{statement}
taken = time.perf_counter() - started
heavy = {{"pydantic", "fsspec", "s3fs", "gcsfs", "adlfs", "botocore", "aiohttp", "ulid"}}
print(taken, *sorted(heavy & set(sys.modules)))
"""


def measure(statement: str, times: int) -> tuple[float, list[str]]:
    """Median seconds of an import, and the heavy modules that came with it."""
    taken: list[float] = []
    loaded: set[str] = set()
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    child = [sys.executable, "-c", _CHILD.format(statement=statement)]
    for attempt in range(times + 1):
        done = subprocess.run(child, capture_output=True, text=True, check=True, env=environment)
        words = done.stdout.split()
        if attempt:  # the first one may have compiled the modules, as an installation does
            taken.append(float(words[0]))
        loaded.update(words[1:])
    return statistics.median(taken), sorted(loaded)


def main() -> int:
    chosen = options("How long importing takes.")
    report = Report(chosen)
    times = 3 if chosen.smoke else 15
    for statement, bound in (("import taquba", 150), ("from taquba import Queue", 300)):
        taken, loaded = measure(statement, times)
        report.line(
            statement,
            {"import_ms": taken * 1e3, "heavy_modules": len(loaded)},
            [
                (f"{bound} ms", lambda f, bound=bound: f["import_ms"] <= bound),
                ("no heavy module", lambda f: f["heavy_modules"] == 0),
            ],
        )
        if loaded:
            print(f"{statement} loads {', '.join(loaded)}", file=sys.stderr)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
