"""What requests cost.

List prices in US dollars per 1,000 requests: S3 Standard in us-east-1; Cloud Storage Standard in
a single region; Azure Blob Storage, hot tier with local redundancy, of block blobs. They differ
by region and class, change, and have volume discounts; options override them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil

from taquba.database import Survey

__all__ = ["Prices", "Requests", "prices_for", "removal"]

_PER_LIST = 1000
_PER_DELETE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Dollars per 1,000 requests of each kind."""

    put: float = 0.0
    get: float = 0.0
    list: float = 0.0
    delete: float = 0.0


_S3 = Prices(put=0.005, get=0.0004, list=0.005)
_GCS = Prices(put=0.005, get=0.0004, list=0.005)
_AZURE = Prices(put=0.0055, get=0.00044, list=0.0055)
PRICES = {
    "s3": _S3,
    "gs": _GCS,
    "gcs": _GCS,
    "az": _AZURE,
    "abfs": _AZURE,
    "abfss": _AZURE,
    "file": Prices(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """How many requests of each kind."""

    put: float = 0
    get: float = 0
    list: float = 0
    delete: float = 0

    def times(self, factor: float) -> Requests:
        """So many times as many."""
        return Requests(
            put=self.put * factor,
            get=self.get * factor,
            list=self.list * factor,
            delete=self.delete * factor,
        )

    def cost(self, prices: Prices) -> float:
        """Dollars."""
        return (
            self.put * prices.put
            + self.get * prices.get
            + self.list * prices.list
            + self.delete * prices.delete
        ) / 1000


def prices_for(scheme: str, overrides: Iterable[tuple[str, float]]) -> Prices:
    """The list prices of a store, apart from what the user knows better."""
    return replace(PRICES.get(scheme, Prices()), **dict(overrides))


def removal(survey: Survey, count: int) -> Requests:
    """What it takes to delete `count` objects, found by listing everything."""
    if not count:
        return Requests()
    return Requests(list=ceil(survey.total.count / _PER_LIST), delete=ceil(count / _PER_DELETE))
