"""What Azure says that both of its clients need to understand."""

from __future__ import annotations

from taquba.errors import (
    BucketNotFound,
    ObjectExists,
    StoreAccessDenied,
    StoreError,
)

__all__ = ["AZURE_CREDENTIALS", "AZURE_KINDS", "azure_hint"]

AZURE_CREDENTIALS = (
    "set AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_NAME and "
    "AZURE_STORAGE_ACCOUNT_KEY (or AZURE_STORAGE_SAS_TOKEN, or log in with 'az login'), or give "
    "the storage options connection_string, or account_name and account_key"
)

AZURE_KINDS: dict[str, type[StoreError]] = {
    "AccountIsDisabled": StoreAccessDenied,
    "BlobAlreadyExists": ObjectExists,
    "BlobArchived": StoreError,
    "BlobBeingRehydrated": StoreError,
    "BlobImmutableDueToPolicy": StoreError,
    "ContainerNotFound": BucketNotFound,
    "PublicAccessNotPermitted": StoreAccessDenied,
    "SnapshotsPresent": StoreError,
}
"""Error codes that say more than their status, which is 409 for most of them."""


def azure_hint(kind: type[StoreError], code: str) -> str:
    """What to do about an answer that refuses."""
    if kind is BucketNotFound:
        return "; create the container first"
    if code == "AuthorizationPermissionMismatch":
        return "; the credentials need the role Storage Blob Data Contributor on the container"
    if kind is StoreAccessDenied:
        return f"; {AZURE_CREDENTIALS}"
    return ""
