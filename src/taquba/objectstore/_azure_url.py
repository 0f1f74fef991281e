"""What stands in the URL of a container."""

from __future__ import annotations

import re

from taquba.errors import InvalidUrl

__all__ = ["split_account"]

_CONTAINER = re.compile(r"(?=.{3,63}\Z)[a-z0-9](?:-?[a-z0-9])*")
_HOST = re.compile(r"(?P<account>[a-z0-9]{3,24})\.(?:dfs|blob)\.(?P<suffix>[a-z0-9.\-]+)")
_PUBLIC_CLOUD = "core.windows.net"


def split_account(rest: str) -> tuple[str, dict[str, str]]:
    """Container and prefix, and the storage options that a URL's account stands for.

    ``container@account.dfs.core.windows.net/prefix`` names the account,
    ``container/prefix`` does not.

    Raises:
        InvalidUrl: The account's address is none, or the container's name is not allowed.
    """
    authority, slash, prefix = rest.partition("/")
    container, at, host = authority.rpartition("@")
    options: dict[str, str] = {}
    if at:
        found = _HOST.fullmatch(host)
        if found is None or ":" in container or "@" in prefix:
            raise InvalidUrl(
                "before an @ comes the container and after it the account's address, as in "
                "abfs://container@account.dfs.core.windows.net/prefix; credentials do not belong "
                "into a URL, which gets logged"
            )
        options["account_name"] = found["account"]
        if found["suffix"] != _PUBLIC_CLOUD:
            options["account_host"] = f"{found['account']}.blob.{found['suffix']}"
    else:
        container = host
    if _CONTAINER.fullmatch(container) is None:
        raise InvalidUrl(
            f"{container!r} is not the name of a container: 3 to 63 of a-z 0-9, with single "
            "hyphens between them"
        )
    return f"{container}{slash}{prefix}", options
