"""Every store that taquba brings passes its public conformance suite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from taquba.objectstore import LocalStore, MemoryStore, ObjectStore, RetryingStore, open_store
from taquba.testing import FaultyStore, ObjectStoreConformance
from tests.objectstore.harness import HastyClock


class TestMemoryStore(ObjectStoreConformance):
    @pytest.fixture(autouse=True)
    def _shared(self) -> None:
        self.store = MemoryStore()

    async def open_store(self) -> ObjectStore:
        return self.store


class TestLocalStore(ObjectStoreConformance):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    async def open_store(self) -> ObjectStore:
        return LocalStore(self.folder)


class TestOpenedLocalStore(TestLocalStore):
    rounds = 1

    async def open_store(self) -> ObjectStore:
        return await open_store(self.folder)


class TestRetryingStoreOverFaults(ObjectStoreConformance):
    """With every tenth request and every tenth answer lost, nothing is different."""

    @pytest.fixture(autouse=True)
    def _shared(self) -> None:
        self.memory = MemoryStore()

    async def open_store(self) -> ObjectStore:
        faulty = FaultyStore(self.memory, seed=7, fail_before=0.1, fail_after=0.1)
        return RetryingStore(faulty, clock=HastyClock())


class TestS3(ObjectStoreConformance):
    contenders = 8  # on SeaweedFS the n-th loser of a race waits up to n seconds
    rounds = 2
    many = 1_020

    @pytest.fixture(autouse=True)
    def _server(self, s3_server: dict[str, Any]) -> None:
        self.server = s3_server

    async def open_store(self) -> ObjectStore:
        url = f"{self.server['url']}/conformance"
        return await open_store(url, **self.server["storage_options"])


class TestGcs(ObjectStoreConformance):
    rounds = 2
    many = 1_020

    @pytest.fixture(autouse=True)
    def _server(self, gcs_server: dict[str, Any]) -> None:
        self.server = gcs_server

    async def open_store(self) -> ObjectStore:
        url = f"{self.server['url']}/conformance"
        return await open_store(url, **self.server["storage_options"])


class TestAzure(ObjectStoreConformance):
    contenders = 20
    rounds = 2
    many = 1_020

    @pytest.fixture(autouse=True)
    def _server(self, azure_server: dict[str, Any]) -> None:
        self.server = azure_server

    async def open_store(self) -> ObjectStore:
        url = f"{self.server['url']}/conformance"
        return await open_store(url, **self.server["storage_options"])
