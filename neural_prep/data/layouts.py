"""Finds a store's layout: every module of this package with `recognises` and `open_source`.

A layout is named as its module, so that another layout is one more file and no change elsewhere.
One that also has `holds_layout`, which is asked of a zarr group, can be read from a URL.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

import neural_prep.data
from neural_prep.data.chunked.remote import is_url
from neural_prep.data.chunked.store import open_store
from neural_prep.data.retry import without_secrets
from neural_prep.data.source import Source, StoreOptions
from neural_prep.errors import InputError

AUTO = "auto"


def open_source(layout: str, options: StoreOptions) -> Source:
    """Opens a store in a layout, or in the one that recognises it.

    Args:
        layout: A layout's name, or `auto`.
        options: Which store, and which part of it.

    Raises:
        InputError: if there is no such layout or store, or the store is not in that layout.
    """
    layouts = find_layouts()
    if layout != AUTO and layout not in layouts:
        near = get_close_matches(layout, layouts, n=len(layouts), cutoff=0)
        raise InputError(f"data.layout: {layout!r} is no layout; use {', '.join(near)} or {AUTO}")
    if options.path.startswith("file://"):
        options = replace(options, path=unquote(urlsplit(options.path).path))
    if is_url(options.path):
        return _open_url(layout, layouts, options)
    if options.storage_options:
        raise InputError("data.storage_options: a folder needs none; leave them out")
    path = Path(options.path)
    try:
        if not path.exists():
            raise InputError(f"data.path: {options.path} is not there{_nearest_folder(path)}")
        name = pick_layout(path, layouts) if layout == AUTO else layout
        source: Source = layouts[name].open_source(options)
    except OSError as error:
        raise InputError(f"data.path: {options.path} cannot be read: {error}") from error
    return source


def _open_url(layout: str, layouts: Mapping[str, ModuleType], options: StoreOptions) -> Source:
    """Opens a store behind a URL, which only zarr layouts can be."""
    shown = without_secrets(options.path)
    zarr = {name: module for name, module in layouts.items() if hasattr(module, "holds_layout")}
    if layout not in (AUTO, *zarr):
        raise InputError(
            f"data.layout: {layout} is read from a folder, not from {shown}; URLs are for "
            f"{' and '.join(zarr)}"
        )
    if layout == AUTO:
        store = open_store(options.path, options.retries, options.storage_options, options.decoder)
        layout = _pick(shown, zarr, lambda module: bool(module.holds_layout(store)))
    source: Source = layouts[layout].open_source(options)
    return source


@cache
def find_layouts() -> Mapping[str, ModuleType]:
    """All layouts by name."""
    package = neural_prep.data
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    modules = {name: importlib.import_module(f"{package.__name__}.{name}") for name in names}
    return {
        name: module
        for name, module in modules.items()
        if hasattr(module, "recognises") and hasattr(module, "open_source")
    }


def pick_layout(path: Path, layouts: Mapping[str, ModuleType]) -> str:
    """The layout that recognises a store.

    A module that says `GENERAL = True` is asked only where no other recognises the store.

    Raises:
        InputError: if none does, or if several do.
    """
    found = _pick(str(path), layouts, lambda module: bool(module.recognises(path)))
    if found:
        return found
    raise InputError(
        f"data.path: {path} is {_contents(path)}, in none of the layouts {', '.join(layouts)}; "
        "say which with data.layout"
    )


def _pick(path: str, layouts: Mapping[str, ModuleType], fits: Callable[[ModuleType], bool]) -> str:
    """The one layout that fits, be it a general one; empty if there is none."""
    found = [name for name, module in layouts.items() if fits(module)]
    special = [name for name in found if not getattr(layouts[name], "GENERAL", False)]
    candidates = special or found
    if len(candidates) > 1:
        raise InputError(
            f"data.path: {path} could be {' or '.join(candidates)}; say which with data.layout"
        )
    return candidates[0] if candidates else ""


def _contents(path: Path) -> str:
    if not path.is_dir():
        return "a file"
    names = sorted(entry.name for entry in path.iterdir())
    if not names:
        return "an empty folder"
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"a folder with {', '.join(names[:3])}{more}"


def _nearest_folder(path: Path) -> str:
    folder = next((parent for parent in path.absolute().parents if parent.exists()), None)
    return "" if folder is None else f"; the nearest folder that exists is {folder}"
