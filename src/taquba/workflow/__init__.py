"""Layer 5: runs of several steps that survive crashes, with memo and outcomes."""

from taquba.errors import PermanentError as PermanentError
from taquba.errors import TransientError as TransientError
from taquba.workflow._blocking_memo import BlockingMemo as BlockingMemo
from taquba.workflow._group import GroupMembers as GroupMembers
from taquba.workflow._group import RunGroup as RunGroup
from taquba.workflow._group_records import MAX_GROUP_ID_LENGTH as MAX_GROUP_ID_LENGTH
from taquba.workflow._group_records import MAX_MEMBER_KEY_SIZE as MAX_MEMBER_KEY_SIZE
from taquba.workflow._group_records import GroupMember as GroupMember
from taquba.workflow._group_records import GroupStatus as GroupStatus
from taquba.workflow._group_records import MemberPage as MemberPage
from taquba.workflow._group_records import MemberResult as MemberResult
from taquba.workflow._group_records import MemberSummary as MemberSummary
from taquba.workflow._hooks import TerminalHook as TerminalHook
from taquba.workflow._hooks import TerminalHookFunction as TerminalHookFunction
from taquba.workflow._memo import MAX_INLINE_MEMO_SIZE as MAX_INLINE_MEMO_SIZE
from taquba.workflow._memo import MAX_MEMO_KEY_SIZE as MAX_MEMO_KEY_SIZE
from taquba.workflow._memo import MAX_MEMO_SIZE as MAX_MEMO_SIZE
from taquba.workflow._memo import Memo as Memo
from taquba.workflow._memo import MemoStats as MemoStats
from taquba.workflow._outcomes import Cancel as Cancel
from taquba.workflow._outcomes import Continue as Continue
from taquba.workflow._outcomes import Fail as Fail
from taquba.workflow._outcomes import Outcome as Outcome
from taquba.workflow._outcomes import Succeed as Succeed
from taquba.workflow._records import ErrorKind as ErrorKind
from taquba.workflow._records import RunCounts as RunCounts
from taquba.workflow._records import RunEnd as RunEnd
from taquba.workflow._records import RunOutcome as RunOutcome
from taquba.workflow._records import RunPage as RunPage
from taquba.workflow._records import RunState as RunState
from taquba.workflow._records import RunStatus as RunStatus
from taquba.workflow._records import RunSummary as RunSummary
from taquba.workflow._records import RunTermination as RunTermination
from taquba.workflow._records import Submitted as Submitted
from taquba.workflow._records import TerminalStatus as TerminalStatus
from taquba.workflow._runner import AsyncRunner as AsyncRunner
from taquba.workflow._runner import BlockingRunner as BlockingRunner
from taquba.workflow._runner import Runner as Runner
from taquba.workflow._runner import StepRunner as StepRunner
from taquba.workflow._runtime import WorkflowRuntime as WorkflowRuntime
from taquba.workflow._signal import MAX_BUFFERED_SIGNALS as MAX_BUFFERED_SIGNALS
from taquba.workflow._signal import MAX_SIGNAL_KEY_SIZE as MAX_SIGNAL_KEY_SIZE
from taquba.workflow._signal import MAX_SIGNAL_SIZE as MAX_SIGNAL_SIZE
from taquba.workflow._signal import SIGNAL_IDS_KEPT as SIGNAL_IDS_KEPT
from taquba.workflow._signal import Signalled as Signalled
from taquba.workflow._signal import SignalMode as SignalMode
from taquba.workflow._signal import SignalOutcome as SignalOutcome
from taquba.workflow._signal_effect import PreparedSignal as PreparedSignal
from taquba.workflow._step import BlockingStep as BlockingStep
from taquba.workflow._step import Step as Step
from taquba.workflow._step import StepLease as StepLease
from taquba.workflow._step_kv import BlockingKeyValueReader as BlockingKeyValueReader
from taquba.workflow._submitting import MAX_RUN_ID_LENGTH as MAX_RUN_ID_LENGTH
from taquba.workflow._submitting import RunEffects as RunEffects
from taquba.workflow._submitting import Submission as Submission
from taquba.workflow._timeline_records import MAX_TIMELINE as MAX_TIMELINE
from taquba.workflow._timeline_records import StepAttempt as StepAttempt
from taquba.workflow._timeline_records import StepAttemptOutcome as StepAttemptOutcome
from taquba.workflow._timeline_records import TimelinePage as TimelinePage
from taquba.workflow._view import WorkflowView as WorkflowView
from taquba.workflow._workflows import MAX_REVISION_LENGTH as MAX_REVISION_LENGTH
from taquba.workflow._workflows import MAX_WORKFLOW_NAME_LENGTH as MAX_WORKFLOW_NAME_LENGTH
from taquba.workflow._workflows import Workflow as Workflow
from taquba.workflow._workflows import WorkflowBacklog as WorkflowBacklog

__all__ = [
    "MAX_BUFFERED_SIGNALS",
    "MAX_GROUP_ID_LENGTH",
    "MAX_INLINE_MEMO_SIZE",
    "MAX_MEMBER_KEY_SIZE",
    "MAX_MEMO_KEY_SIZE",
    "MAX_MEMO_SIZE",
    "MAX_REVISION_LENGTH",
    "MAX_RUN_ID_LENGTH",
    "MAX_SIGNAL_KEY_SIZE",
    "MAX_SIGNAL_SIZE",
    "MAX_TIMELINE",
    "MAX_WORKFLOW_NAME_LENGTH",
    "SIGNAL_IDS_KEPT",
    "AsyncRunner",
    "BlockingKeyValueReader",
    "BlockingMemo",
    "BlockingRunner",
    "BlockingStep",
    "Cancel",
    "Continue",
    "ErrorKind",
    "Fail",
    "GroupMember",
    "GroupMembers",
    "GroupStatus",
    "MemberPage",
    "MemberResult",
    "MemberSummary",
    "Memo",
    "MemoStats",
    "Outcome",
    "PermanentError",
    "PreparedSignal",
    "RunCounts",
    "RunEffects",
    "RunEnd",
    "RunGroup",
    "RunOutcome",
    "RunPage",
    "RunState",
    "RunStatus",
    "RunSummary",
    "RunTermination",
    "Runner",
    "SignalMode",
    "SignalOutcome",
    "Signalled",
    "Step",
    "StepAttempt",
    "StepAttemptOutcome",
    "StepLease",
    "StepRunner",
    "Submission",
    "Submitted",
    "Succeed",
    "TerminalHook",
    "TerminalHookFunction",
    "TerminalStatus",
    "TimelinePage",
    "TransientError",
    "Workflow",
    "WorkflowBacklog",
    "WorkflowRuntime",
    "WorkflowView",
]
