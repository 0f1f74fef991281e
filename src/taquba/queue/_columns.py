"""The places of a job's columns in a row, in the order of `JOB_COLUMNS`."""

from __future__ import annotations

__all__ = [
    "AS_CLAIMED",
    "ATTEMPTS",
    "CANCEL_REQUESTED",
    "CLAIMED_AT",
    "DEDUP_KEY",
    "ENDED_AT",
    "ENQUEUED_AT",
    "ERROR_TYPE",
    "FLOW_KEY",
    "HEADERS",
    "HISTORY",
    "ID",
    "JOB_COLUMNS",
    "LAST_ERROR",
    "MAX_ATTEMPTS",
    "NEXT_CLAIMED",
    "PAYLOAD",
    "PAYLOAD_REF",
    "PRIORITY",
    "QUEUE",
    "RETRY",
    "RUN_AT",
    "SEQ",
    "STATE",
    "TRACEBACK",
    "WAKE_PAYLOAD",
    "WIDTH",
    "WITHOUT_PAYLOADS",
    "WOKEN_AT",
]

JOB_COLUMNS = (
    "seq, id, queue, state, priority, attempts, max_attempts, enqueued_at, run_at, claimed_at,"
    " ended_at, cancel_requested, dedup_key, last_error, headers, payload, woken_at, wake_payload,"
    " payload_ref, retry, error_type, traceback, flow_key, history"
)
WITHOUT_PAYLOADS = JOB_COLUMNS.replace(" payload,", " NULL,").replace(" wake_payload,", " NULL,")
"""As `JOB_COLUMNS`, for what needs no large values of a job."""
WIDTH = JOB_COLUMNS.count(",") + 1
AS_CLAIMED = (
    "SELECT seq, id, queue, 2, priority, attempts + 1, max_attempts, enqueued_at, NULL, ?,"
    " NULL, cancel_requested, NULL, last_error, headers, payload, woken_at, wake_payload,"
    " payload_ref, retry, error_type, traceback, flow_key, history, dedup_key"
    " FROM jobs WHERE "
)
"""Rows as they are once they are claimed, and, behind them, the dedup key that is given up."""
NEXT_CLAIMED = f"{AS_CLAIMED} queue = ? AND state = 0 ORDER BY priority, seq LIMIT ?"
"""Those that the claim order puts first."""
(
    SEQ,
    ID,
    QUEUE,
    STATE,
    PRIORITY,
    ATTEMPTS,
    MAX_ATTEMPTS,
    ENQUEUED_AT,
    RUN_AT,
    CLAIMED_AT,
    ENDED_AT,
    CANCEL_REQUESTED,
    DEDUP_KEY,
    LAST_ERROR,
    HEADERS,
    PAYLOAD,
    WOKEN_AT,
    WAKE_PAYLOAD,
    PAYLOAD_REF,
    RETRY,
    ERROR_TYPE,
    TRACEBACK,
    FLOW_KEY,
    HISTORY,
) = range(WIDTH)
