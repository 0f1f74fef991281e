"""Layer 3: a SQLite database whose every committed change is in the journal."""

from taquba.database._config import DatabaseConfig as DatabaseConfig
from taquba.database._config import DatabaseStatistics as DatabaseStatistics
from taquba.database._database import Database as Database
from taquba.database._database import Transaction as Transaction
from taquba.database._export import Exported as Exported
from taquba.database._export import export_state as export_state
from taquba.database._orphans import ObjectKeys as ObjectKeys
from taquba.database._replica import Lag as Lag
from taquba.database._replica import Replica as Replica
from taquba.database._report import CheckedCheckpoint as CheckedCheckpoint
from taquba.database._report import Finding as Finding
from taquba.database._report import Progress as Progress
from taquba.database._report import VerifyReport as VerifyReport
from taquba.database._schema import InvalidSchema as InvalidSchema
from taquba.database._schema import SchemaModule as SchemaModule
from taquba.database._state import Execute as Execute
from taquba.database._state import Rows as Rows
from taquba.database._survey import Group as Group
from taquba.database._survey import Orphans as Orphans
from taquba.database._survey import StoredCheckpoint as StoredCheckpoint
from taquba.database._survey import Survey as Survey
from taquba.database._survey import survey as survey
from taquba.database._verify import Check as Check
from taquba.database._verify import verify as verify

__all__ = [
    "Check",
    "CheckedCheckpoint",
    "Database",
    "DatabaseConfig",
    "DatabaseStatistics",
    "Execute",
    "Exported",
    "Finding",
    "Group",
    "InvalidSchema",
    "Lag",
    "ObjectKeys",
    "Orphans",
    "Progress",
    "Replica",
    "Rows",
    "SchemaModule",
    "StoredCheckpoint",
    "Survey",
    "Transaction",
    "VerifyReport",
    "export_state",
    "survey",
    "verify",
]
