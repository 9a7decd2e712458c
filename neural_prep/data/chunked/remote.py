"""Stores behind a URL: object storage and web servers, by obstore.

Not by fsspec: obstore is one package for all of them, needs less than fsspec's time for a request,
and its requests run outside Python, so that hundreds of them wait while chunks are decoded. Its own
repetitions are switched off: ours are said to the user.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any
from urllib.parse import urlsplit

from zarr.abc.store import Store
from zarr.storage import ObjectStore

from neural_prep.data.retry import reason_of, without_secrets
from neural_prep.errors import InputError

SCHEMES = ("s3", "gs", "http", "https")
_PATIENCE = {"connect_timeout": "20s", "timeout": "300s"}  # a chunk may be large and a line slow
_CLIENT = (
    *("allow_http", "allow_invalid_certificates", "connect_timeout", "default_headers"),
    *("pool_idle_timeout", "pool_max_idle_per_host", "proxy_url", "proxy_ca_certificate"),
    *("proxy_excludes", "root_certificate", "timeout", "user_agent"),
)
_OTHER_NAMES = {  # what fsspec calls them
    "anon": "skip_signature: true",
    "token": "skip_signature: true for public data, or service_account",
    "key": "access_key_id",
    "secret": "secret_access_key",
    "endpoint_url": "endpoint",
    "client_kwargs": "endpoint, region or timeout, which need no nesting",
}


def is_url(path: str) -> bool:
    """Whether a path is a URL.

    >>> is_url("s3://bucket/store.zarr"), is_url("/scratch/a:b.zarr")
    (True, False)
    """
    return "://" in path


def is_listable(url: str) -> bool:
    """Whether what lies in a store can be listed: web servers have no way that all share."""
    return not url.startswith(("http://", "https://"))


def open_url(url: str, options: Mapping[str, Any] | None) -> Store:
    """A store for reading; nothing is requested yet.

    Args:
        url: Where it is.
        options: obstore's settings of the store and of its HTTP client.

    Raises:
        InputError: if the URL or an option is of no use, or obstore is not installed.
    """
    scheme = urlsplit(url).scheme
    if scheme not in SCHEMES:
        raise InputError(
            f"data.path: {without_secrets(url)}: {scheme}:// cannot be read; expected a folder or "
            f"{', '.join(f'{each}://' for each in SCHEMES)}"
        )
    try:
        from obstore import store as stores
        from obstore.exceptions import BaseError
    except ImportError as error:
        raise InputError(
            f"data.path: {without_secrets(url)} needs the package obstore, which is not installed; "
            "pip install 'neural-prep[remote]'"
        ) from error
    given: Any = dict(options or {})
    client = {**_PATIENCE, "allow_http": True}
    client |= {name: given.pop(name) for name in _CLIENT if name in given}
    shared: dict[str, Any] = {"client_options": client, "retry_config": {"max_retries": 0}}
    try:
        if scheme == "s3":
            return _read_only(stores.S3Store.from_url(url, config=given, **shared))
        if scheme == "gs":
            return _read_only(stores.GCSStore.from_url(url, config=given, **shared))
        if given:
            raise InputError(_unknown(next(iter(given)), scheme))
        return _read_only(stores.HTTPStore.from_url(url, **shared))
    except (BaseError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        unknown = next((name for name in given if f"'{name}'" in str(error)), None)
        if unknown is not None:
            raise InputError(_unknown(unknown, scheme)) from error
        raise InputError(
            f"data.path: {without_secrets(url)} cannot be used ({reason_of(error)}); check it and "
            "data.storage_options"
        ) from error


def _read_only(store: Any) -> Store:
    return ObjectStore(store, read_only=True)


def _unknown(name: str, scheme: str) -> str:
    """What to say of an option that there is not."""
    near = get_close_matches(name, _CLIENT, n=1)
    instead = near[0] if near else None
    if scheme.startswith("http"):
        instead = instead or f"only {', '.join(_CLIENT)}"
    instead = instead or _OTHER_NAMES.get(name, "what obstore lists for this kind of store")
    return f"data.storage_options: {name} is no option of {scheme}://; use {instead}"
