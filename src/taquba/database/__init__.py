"""Layer 3: a SQLite database whose every committed change is in the journal."""

from taquba.database._config import DatabaseConfig as DatabaseConfig
from taquba.database._config import DatabaseStatistics as DatabaseStatistics
from taquba.database._database import Database as Database
from taquba.database._database import Transaction as Transaction
from taquba.database._export import Exported as Exported
from taquba.database._export import export_state as export_state
from taquba.database._replica import Lag as Lag
from taquba.database._replica import Replica as Replica
from taquba.database._schema import InvalidSchema as InvalidSchema
from taquba.database._schema import SchemaModule as SchemaModule
from taquba.database._state import Execute as Execute
from taquba.database._state import Rows as Rows

__all__ = [
    "Database",
    "DatabaseConfig",
    "DatabaseStatistics",
    "Execute",
    "Exported",
    "InvalidSchema",
    "Lag",
    "Replica",
    "Rows",
    "SchemaModule",
    "Transaction",
    "export_state",
]
