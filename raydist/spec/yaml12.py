"""YAML 1.2's scalars with PyYAML, which reads 1.1: `1e-3` as text, `no` as False, `2:4` as 124."""

from __future__ import annotations

import re
from typing import Any

import yaml


class Yaml12Loader(yaml.SafeLoader):
    """Resolves plain scalars by YAML 1.2's core schema; a key that is there twice is an error."""

    # A table of its own: SafeLoader's is shared by every loader of the process.
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and (key.tag, key.value) in seen:
                raise yaml.constructor.ConstructorError(
                    problem=f"the key {key.value!r} is there twice", problem_mark=key.start_mark
                )
            seen.add((key.tag, str(key.value)))
        return super().construct_mapping(node, deep)

    def construct_int(self, node: yaml.ScalarNode) -> int:
        written = self.construct_scalar(node)
        base = {"0o": 8, "0x": 16}.get(written[:2], 10)
        try:
            return int(written, base)
        except ValueError as error:  # Python reads at most 4300 digits
            raise yaml.constructor.ConstructorError(
                problem="the number is too long", problem_mark=node.start_mark
            ) from error


def parse_yaml(text: str) -> Any:
    """Returns what `text` holds; raises yaml.YAMLError."""
    return yaml.load(text, Loader=Yaml12Loader)  # a SafeLoader


def _resolve(kind: str, pattern: str, first: str) -> None:
    Yaml12Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{kind}", re.compile(f"^(?:{pattern})$"), list(first)
    )


_resolve("null", r"~|null|Null|NULL", "~nN")
Yaml12Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^$"), [""])
_resolve("bool", r"true|True|TRUE|false|False|FALSE", "tTfF")
_resolve("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789")
_resolve("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", "-+.0123456789")
_resolve("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+.")
Yaml12Loader.add_constructor("tag:yaml.org,2002:int", Yaml12Loader.construct_int)
