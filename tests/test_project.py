"""Rules about the project that no other tool checks."""

from __future__ import annotations

import ast
import importlib
import inspect
import pickle
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from taquba import errors

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
MAX_LINES = 600

# Split, so that this file does not contain what it looks for.
FOREIGN = ["../" + "shared", "/" + "work/", "/" + "root/", "/" + "home/"]
SKIPPED_FOLDERS = {"build", "dist", "node_modules", "__pycache__"}


def own_files() -> Iterator[Path]:
    """The files of the repository, without what tools and builds leave behind."""
    for path in sorted(ROOT.rglob("*")):
        parts = path.relative_to(ROOT).parts
        hidden = any(part.startswith(".") and part != ".ci" for part in parts[:-1])
        worktree = parts == (".git",)  # a file there, of git's own
        if path.is_file() and not hidden and not worktree and not SKIPPED_FOLDERS & set(parts):
            yield path


# -- sources ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_a_module_fits_in_one_reading(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_only_the_clock_sleeps(path: Path) -> None:
    """``asyncio.sleep(0)`` only lets others run; the linter cannot tell it from a real sleep."""
    if path.name == "clock.py":
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "asyncio":
            assert "sleep" not in [alias.name for alias in node.names], "say asyncio.sleep(0)"
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "asyncio.sleep":
            assert ast.unparse(node) == "asyncio.sleep(0)", f"line {node.lineno}: use the Clock"


def test_nothing_refers_to_the_machine_it_was_written_on() -> None:
    found: list[str] = []
    for path in own_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {name}" for name in FOREIGN if name in text]
    assert not found


# -- public names -----------------------------------------------------------------------------


def test_public_names_exist(package: str) -> None:
    module = importlib.import_module(package)
    missing = [name for name in module.__all__ if not hasattr(module, name)]
    assert not missing
    assert len(set(module.__all__)) == len(module.__all__)


def test_public_names_are_documented(package: str) -> None:
    module = importlib.import_module(package)
    silent = [
        name
        for name in module.__all__
        if inspect.isclass(value := getattr(module, name)) or inspect.isfunction(value)
        if not inspect.getdoc(value)
    ]
    assert not silent


# -- errors -----------------------------------------------------------------------------------


def error_classes() -> list[type[errors.TaqubaError]]:
    return [getattr(errors, name) for name in errors.__all__]


def test_every_error_is_in_the_list_and_in_the_drawn_tree() -> None:
    defined = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.TaqubaError)
    }
    assert defined == set(errors.__all__)
    drawn = re.findall(r"\b[A-Z][A-Za-z]+\b", _tree())
    assert {name for name in drawn if name in defined} == defined
    assert len([name for name in drawn if name in defined]) == len(defined), "drawn twice"


def test_the_drawn_tree_is_the_real_one() -> None:
    parents = {0: "TaqubaError"}
    for line in _tree().splitlines():
        found = re.match(r"(?P<indent>[│ ]*)[├└]── (?P<names>[A-Za-z, ]+?)(?:   |$)", line)
        if found is None:
            continue
        depth = len(found["indent"]) // 4
        for name in found["names"].split(", "):
            assert getattr(errors, name).__bases__[0].__name__ == parents[depth], line
            parents[depth + 1] = name


def _tree() -> str:
    assert errors.__doc__ is not None
    return textwrap.dedent(errors.__doc__.partition("::")[2])


@pytest.mark.parametrize("kind", error_classes(), ids=lambda kind: kind.__name__)
def test_errors_survive_pickling(kind: type[errors.TaqubaError]) -> None:
    error = kind("what, and what to do")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == "what, and what to do"


def test_store_errors_keep_their_details_when_pickled() -> None:
    copy = pickle.loads(pickle.dumps(errors.ObjectNotFound("gone", operation="get", key="a/b")))
    assert (str(copy), copy.operation, copy.key) == ("gone", "get", "a/b")


# -- imports ----------------------------------------------------------------------------------

CLOUD = ["adlfs", "aiobotocore", "aiohttp", "azure", "botocore", "gcsfs", "google", "s3fs"]


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import taquba", [*CLOUD, "anyio", "apsw", "asyncio", "fsspec", "msgpack", "pydantic"]),
        ("from taquba import Queue", [*CLOUD, "fsspec", "pydantic", "ulid"]),
        ("from taquba.workflow import WorkflowRuntime", [*CLOUD, "fsspec", "pydantic", "ulid"]),
        ("from taquba.webhooks import WebhookHook, verify", [*CLOUD, "fsspec", "httpx", "ulid"]),
    ],
)
def test_an_import_loads_nothing_that_is_not_needed_yet(
    statement: str, unwanted: list[str]
) -> None:
    program = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50
    )
    assert not set(done.stdout.split()) & set(unwanted)


# -- the pinned API ---------------------------------------------------------------------------

PUBLIC = {
    "taquba": """
        Claim Clock Effects Enqueued Follower Job JobPage JobState Lag ManualClock open_store
        PermanentError Queue QueueConfig QueueStats SystemClock TaqubaError TransientError
        Dead Delivery Done FailWith Heartbeat JobView Retry RateLimit RetryPolicy Worker
    """,
    "taquba.objectstore": """
        FsspecStore LocalStore MAX_KEY_LENGTH MAX_SEGMENT_LENGTH MemoryStore ObjectInfo
        ObjectStore open_store PROBE_PREFIX RetryingStore RetryPolicy verify_store
    """,
    "taquba.journal": """
        Checkpoint checkpoint_as_of checkpoint_key CHECKPOINT_PREFIX checkpoints collect Collected
        contradiction Entry entry_key EpochMark Journal JOURNAL_PREFIX JournalConfig JournalGap
        JournalStatistics Kind list_checkpoints LogWalk Manifests newest_checkpoint Overtaken
        Pace Position publish_checkpoint read_checkpoint read_entry read_manifests replay
        seq_of_key START StateMachine Tail
    """,
    "taquba.database": """
        Check CheckedCheckpoint Database DatabaseConfig DatabaseStatistics Execute export_state
        Exported Finding Group InvalidSchema Lag ObjectKeys Orphans Progress Replica Rows
        SchemaModule StoredCheckpoint Survey survey Transaction verify VerifyReport
    """,
    "taquba.queue": """
        EffectPart
        Cancelled CancelOutcome CancelToken Claim Effects Enqueued Follower Handler Job JobPage
        JobState KeyValue KeyValuePage KeyValueReader Lag QueueReader
        MAX_BATCH_SIZE MAX_DEDUP_KEY_LENGTH MAX_HEADERS_SIZE MAX_JOB_ID_LENGTH MAX_KV_KEY_SIZE
        MAX_KV_VALUE_SIZE MAX_PAYLOAD_SIZE MAX_PRIORITY MAX_QUEUE_NAME_LENGTH
        MAX_STREAMED_PAYLOAD_SIZE MAX_WAKE_PAYLOAD_SIZE Committed Completion CompletionOutcome
        WakeOutcome Woken DeleteEntry ExpiryIndex KeepEntry PAYLOAD_PREFIX new_job NewJob
        Opening PRIORITY_HIGH PRIORITY_LOW PRIORITY_NORMAL Queue QueueConfig QueueStats
        QUEUE_CHECKS QueueTransaction Redriven Settled Settlement verify_queue Worker
        Attempt AttemptOutcome Dead Delivery Done Engine FailWith Failure failure_of Heartbeat
        JobView MAX_ERROR_LENGTH MAX_HISTORY MAX_TRACEBACK_LENGTH OnError Result Retry
        FailedSettlement RetryPolicy Work RateLimit FlowStatus MAX_CONCURRENCY_KEY_LENGTH
        StoredValue
    """,
    "taquba.workflow": """
        AsyncRunner BlockingMemo BlockingRunner BlockingStep Cancel Continue ErrorKind Fail
        MAX_BUFFERED_SIGNALS MAX_SIGNAL_KEY_SIZE MAX_SIGNAL_SIZE SIGNAL_IDS_KEPT Signalled
        SignalMode SignalOutcome PreparedSignal
        MAX_MEMO_KEY_SIZE MAX_MEMO_SIZE MAX_RUN_ID_LENGTH Memo Outcome PermanentError RunEnd
        RunCounts RunPage RunSummary WorkflowView
        Runner RunOutcome RunState RunStatus RunTermination Step StepLease StepRunner Submitted
        Succeed TerminalStatus TransientError WorkflowRuntime
        MAX_TIMELINE StepAttempt StepAttemptOutcome TimelinePage
        MAX_REVISION_LENGTH MAX_WORKFLOW_NAME_LENGTH Workflow WorkflowBacklog
        TerminalHook TerminalHookFunction
        BlockingKeyValueReader RunEffects Submission
        MAX_INLINE_MEMO_SIZE MemoStats
        GroupMember GroupMembers GroupStatus MAX_GROUP_ID_LENGTH MAX_MEMBER_KEY_SIZE
        MemberPage MemberResult MemberSummary RunGroup
    """,
    "taquba.jobs": """
        BlockingJobContext Call Job JobContext JobGroup JobHandle JobLike JobResult JobRunner
        JobView job payload_idempotency_key
    """,
    "taquba.stages": """
        BoundStage Call Stages stage
    """,
    "taquba.webhooks": """
        DEFAULT_RETRY enqueue_webhook MAX_BODY_SIZE MAX_URL_LENGTH Secret sign Verified verify
        WebhookDeliverer WebhookHook
    """,
    "taquba.testing": """
        FaultyStore HeldRequests LatencyStore ManualClock ObjectStoreConformance StoreRequest
        CrashPoint InMemoryMetrics Part request_cancel Sandbox StillRunning
    """,
}
"""What each package offers. A name that goes is a broken promise, so change this knowingly."""


def test_the_public_names_are_the_pinned_ones(package: str) -> None:
    offered = set(importlib.import_module(package).__all__)
    pinned = set(PUBLIC[package].split())
    assert offered == pinned


@pytest.fixture(params=PUBLIC)
def package(request: pytest.FixtureRequest) -> str:
    return request.param
