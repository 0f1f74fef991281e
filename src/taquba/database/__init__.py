"""Layer 3: a SQLite database whose every committed change is in the journal."""

from taquba.database._thin import Database as Database
from taquba.database._thin import DatabaseConfig as DatabaseConfig
from taquba.database._thin import SchemaModule as SchemaModule
from taquba.database._thin import Transaction as Transaction

__all__ = ["Database", "DatabaseConfig", "SchemaModule", "Transaction"]
