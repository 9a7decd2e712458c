"""Blosc chunks that are cut off: blosc itself reads on past their end, whatever lies there.

Its header says how long a chunk is, and nothing between zarr and blosc compares that with what was
read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from numcodecs import Blosc
from numcodecs.compat import ensure_contiguous_ndarray
from zarr.abc.codec import Codec
from zarr.codecs import BloscCodec, ShardingCodec

_HEADER, _LENGTH = 16, slice(12, 16)  # bytes; of all of it, little-endian


def check_lengths(metadata: Any) -> Any:
    """An array's metadata with codecs that refuse blosc chunks of another length than they say."""
    if metadata.zarr_format == 3:
        return replace(metadata, codecs=tuple(map(_checked, metadata.codecs)))
    if type(metadata.compressor) is Blosc:
        settings = metadata.compressor.get_config()
        del settings["id"]
        return replace(metadata, compressor=_WholeBlosc(**settings))
    return metadata


def _checked(codec: Codec) -> Codec:
    if isinstance(codec, ShardingCodec):
        return replace(codec, codecs=tuple(map(_checked, codec.codecs)))
    if type(codec) is BloscCodec:
        return _WholeBloscCodec.from_dict(codec.to_dict())
    return codec


def _check(chunk: Any) -> None:
    """Raises ValueError if a chunk is not as long as its header says."""
    content = ensure_contiguous_ndarray(chunk).view("u1")
    said = int.from_bytes(content[_LENGTH].tobytes(), "little")
    if len(content) < _HEADER or said != len(content):
        raise ValueError(f"blosc data of {len(content)} bytes, of which their header says {said}")


class _WholeBlosc(Blosc):  # type: ignore[misc]
    """Blosc of zarr 2."""

    def decode(self, buf: Any, out: Any = None) -> Any:
        _check(buf)
        return super().decode(buf, out)


class _WholeBloscCodec(BloscCodec):
    """Blosc of zarr 3."""

    async def _decode_single(self, chunk_bytes: Any, chunk_spec: Any) -> Any:
        _check(chunk_bytes.as_numpy_array())
        return await super()._decode_single(chunk_bytes, chunk_spec)
