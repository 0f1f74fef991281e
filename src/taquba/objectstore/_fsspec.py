"""A store on a bucket, reached through an fsspec filesystem."""

from __future__ import annotations

import sys
from typing import Any

from taquba.errors import InvalidArgument, UnsafeStore
from taquba.objectstore._bucket import BucketStore, Driver, split_path

__all__ = ["FsspecStore"]


class FsspecStore(BucketStore):
    """A store on a bucket, reached through an fsspec filesystem.

    Supported is s3fs (`s3fs.S3FileSystem`, with ``asynchronous=True``). Every other
    filesystem is refused: fsspec has no call for create-if-absent that is exclusive
    everywhere. Its local filesystem looks first and then overwrites, others ignore the
    wish, and none says so.

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
        filesystem: An s3fs filesystem made with ``asynchronous=True``.
        path: The bucket, and optionally a prefix of all keys: ``"bucket/app"``.

        Raises:
            UnsafeStore: Any other filesystem.
            InvalidArgument: Not asynchronous, or not a bucket and prefix.
        """
        bucket, prefix = split_path(path)
        super().__init__(_driver(filesystem, bucket), prefix)


def _driver(filesystem: Any, bucket: str) -> Driver:
    # By class and not by protocol: others call themselves "s3" and ignore the condition.
    s3fs: Any = sys.modules.get("s3fs")
    if s3fs is not None and isinstance(filesystem, s3fs.S3FileSystem):
        if not filesystem.asynchronous:
            raise InvalidArgument(
                "the filesystem is not asynchronous: make it with asynchronous=True"
            )
        from taquba.objectstore._s3 import S3Driver

        return S3Driver(filesystem, bucket)
    kind: Any = type(filesystem)  # pyright: ignore[reportUnknownVariableType]
    raise UnsafeStore(
        f"{kind.__module__}.{kind.__qualname__} is not a filesystem that is known to create an "
        "object only if it is absent: use s3fs.S3FileSystem; for a folder use LocalStore, for "
        "memory MemoryStore"
    )
