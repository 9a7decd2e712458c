"""Codecs that are not installed: found where a store is opened, and named with their remedy."""

from __future__ import annotations

import re
from typing import Any

import numcodecs
from numcodecs.errors import UnknownCodecError as NoSuchCodecError
from zarr.errors import UnknownCodecError

from neural_prep.errors import InputError

UNKNOWN_CODEC = (UnknownCodecError, NoSuchCodecError)  # zarr's and numcodecs' errors
_PACKAGES = {"zfpy": "zfpy", "pcodec": "pcodec", "msgpack2": "msgpack", "crc32c": "google-crc32c"}


def check_codecs(place: str, metadata: Any) -> None:
    """Finds out which codecs of numcodecs are not installed: zarr 3 says so only when it reads.

    Args:
        place: The array, for messages.
        metadata: Its metadata.

    Raises:
        InputError: naming the codec and what to install.
    """
    for codec in getattr(metadata, "codecs", ()):
        described = codec.to_dict()
        kind = str(described["name"])
        if kind.startswith("numcodecs."):
            settings = described.get("configuration", {})
            try:
                numcodecs.get_codec({**settings, "id": kind.removeprefix("numcodecs.")})
            except NoSuchCodecError as error:
                raise InputError(f"{place}: {codec_missing(error)}") from error


def codec_missing(error: Exception) -> str:
    """What to say where a codec is not installed, whose name its error has in quotes."""
    found = re.search(r"'+(?:numcodecs\.)?([\w.-]+)'+", str(error))
    name = found[1] if found else str(error)
    package = _PACKAGES.get(name)
    remedy = f"pip install {package}" if package else "install the package that provides it"
    return f"codec {name} is not installed; {remedy}"


def remedy_of(error: Exception) -> str:
    """What to do about values that cannot be decoded."""
    if isinstance(error, UNKNOWN_CODEC):
        return codec_missing(error)
    return "write it again"
