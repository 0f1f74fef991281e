"""What SQLite does, where the database relies on it."""

from __future__ import annotations

from pathlib import Path

import apsw


def _connection(name: str) -> apsw.Connection:
    flags = apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    connection = apsw.Connection(name, flags=flags)
    for pragma in ("journal_mode = MEMORY", "synchronous = OFF", "locking_mode = EXCLUSIVE"):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    connection.execute("CREATE TABLE t (k INTEGER NOT NULL PRIMARY KEY, v BLOB)")
    with connection:
        connection.executemany(
            "INSERT INTO t VALUES (?, zeroblob(3000))", ((i,) for i in range(200))
        )
    return connection


def _copy_while_writing(source: apsw.Connection, path: Path, steps: int) -> bool:
    """Whether a copy that is written beside comes to an end, and equals the source then."""
    target = apsw.Connection(str(path))
    with target.backup("main", source, "main") as backup:
        for i in range(steps):
            if backup.step(5):
                break
            source.execute("UPDATE t SET v = zeroblob(2999) WHERE k = ?", (i % 200,))
        else:
            return False
    same = (
        target.execute("SELECT * FROM t").fetchall() == source.execute("SELECT * FROM t").fetchall()
    )
    target.close()
    return same


def test_commits_are_carried_over_into_a_running_copy_on_memdb_and_restart_it_elsewhere(
    tmp_path: Path,
) -> None:
    memdb = _connection("file:/carried-over?vfs=memdb")
    assert _copy_while_writing(memdb, tmp_path / "a.db", 150)
    memory = _connection(":memory:")
    assert not _copy_while_writing(memory, tmp_path / "b.db", 150)


def test_a_copy_is_refused_while_a_transaction_writes(tmp_path: Path) -> None:
    source = _connection("file:/refused?vfs=memdb")
    target = apsw.Connection(str(tmp_path / "a.db"))
    with target.backup("main", source, "main") as backup:
        source.execute("BEGIN")
        assert not backup.step(1)  # reading only, so far
        source.execute("UPDATE t SET v = NULL WHERE k = 1")
        assert source.txn_state("main") == apsw.SQLITE_TXN_WRITE
        try:
            backup.step(1)
        except apsw.BusyError:
            pass
        else:
            raise AssertionError("it was not refused")
        source.execute("COMMIT")
        assert source.txn_state("main") != apsw.SQLITE_TXN_WRITE
        while not backup.step(50):
            pass


def test_a_bound_value_does_not_prepare_a_statement_anew() -> None:
    """Without the stability guarantee a partial index costs a new plan for each value."""
    from taquba.database._state import State

    state = State(2**20)
    assert state.connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, -1)
    state.close()


def test_rolled_back_changes_are_not_in_the_patchset() -> None:
    connection = _connection("file:/rolled-back?vfs=memdb")
    session = apsw.Session(connection, "main")
    session.attach()
    connection.execute("BEGIN")
    connection.execute("SAVEPOINT s")
    connection.execute("DELETE FROM t")
    connection.execute("ROLLBACK TO s")
    connection.execute("RELEASE s")
    connection.execute("COMMIT")
    assert session.patchset() == b""
