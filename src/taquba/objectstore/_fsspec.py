"""A store on a bucket, reached through an fsspec filesystem."""

from __future__ import annotations

import sys
from typing import Any

from taquba.errors import InvalidArgument, UnsafeStore
from taquba.objectstore._bucket import BucketStore, Driver, split_path

__all__ = ["FsspecStore"]


class FsspecStore(BucketStore):
    """A store on a bucket, reached through an fsspec filesystem.

    Supported are `s3fs.S3FileSystem`, `gcsfs.core.GCSFileSystem` (not the subclass that gcsfs
    exports by that name) and `adlfs.AzureBlobFileSystem`, each made with
    ``asynchronous=True``. Every other filesystem is refused: fsspec has no call for
    create-if-absent that is exclusive everywhere. Its local filesystem looks first and then
    overwrites, others ignore the wish, and none says so.

    `open_store` builds the filesystem with settings that fit, and verifies the bucket. If
    you pass one that you built, call `verify_store` once. The filesystem's connections are
    closed with this store.

    Example:
        >>> import s3fs
        >>> fs = s3fs.S3FileSystem(asynchronous=True, skip_instance_cache=True)
        >>> store = FsspecStore(fs, "bucket/some/prefix")
    """

    def __init__(self, filesystem: Any, path: str) -> None:
        """Args:
        filesystem: One of the above, made with ``asynchronous=True``.
        path: The bucket (or container), and optionally a prefix of all keys: ``"bucket/app"``.

        Raises:
            UnsafeStore: Any other filesystem.
            InvalidArgument: Not asynchronous, or not a bucket and prefix.
        """
        bucket, prefix = split_path(path)
        super().__init__(_driver(filesystem, bucket), prefix)


def _driver(filesystem: Any, bucket: str) -> Driver:
    # By class and not by protocol: others call themselves "s3" and ignore the condition.
    for module, name, make in _DRIVERS:
        known: Any = getattr(sys.modules.get(module), name, None)
        if known is None or not isinstance(filesystem, known):
            continue
        if name == "GCSFileSystem" and type(filesystem) is not known:
            break
        if not filesystem.asynchronous:
            raise InvalidArgument(
                "the filesystem is not asynchronous: make it with asynchronous=True"
            )
        return make(filesystem, bucket)
    kind: Any = type(filesystem)  # pyright: ignore[reportUnknownVariableType]
    raise UnsafeStore(
        f"{kind.__module__}.{kind.__qualname__} is not a filesystem that is known to create an "
        "object only if it is absent: use s3fs.S3FileSystem, gcsfs.core.GCSFileSystem (not the "
        "subclass of that name in gcsfs) or adlfs.AzureBlobFileSystem; for a folder use "
        "LocalStore, for memory MemoryStore"
    )


def _s3(filesystem: Any, bucket: str) -> Driver:
    from taquba.objectstore._s3 import S3Driver

    return S3Driver(filesystem, bucket)


def _gcs(filesystem: Any, bucket: str) -> Driver:
    from taquba.objectstore._gcs import GcsDriver

    return GcsDriver(filesystem, bucket)


def _azure(filesystem: Any, bucket: str) -> Driver:
    from taquba.objectstore._azure import AzureDriver

    return AzureDriver(filesystem, bucket)


_DRIVERS = (
    ("s3fs", "S3FileSystem", _s3),
    ("gcsfs.core", "GCSFileSystem", _gcs),
    ("adlfs", "AzureBlobFileSystem", _azure),
)
