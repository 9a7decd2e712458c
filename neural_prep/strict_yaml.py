"""YAML read more strictly than usual: no key twice, and dates stay text."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

from neural_prep.errors import InputError


class StrictLoader(yaml.SafeLoader):
    """YAML whose mappings have each key once, and whose dates stay text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """A mapping, whose keys are looked at before they are merged."""
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            where = f"{key_node.start_mark.name}, line {key_node.start_mark.line + 1}"
            if not isinstance(key, Hashable):
                raise InputError(f"{where}: {key!r} is no key; expected a word or a number")
            if key in seen:
                raise InputError(f"{where}: key {key!r} is given twice; keep one")
            seen.add(key)
        return super().construct_mapping(node, deep)


StrictLoader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
