"""A cluster config: a YAML file with JobSpec's field names and `params`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from raydist.entry.environment import read_text
from raydist.errors import SpecError
from raydist.spec.settings.options import PARAMS
from raydist.spec.settings.resolution import TypedOptions, typed_values
from raydist.spec.yaml12 import Yaml12Loader


def read_config(path: Path) -> TypedOptions:
    """Returns the file's options, typed, and its `params`; an empty file sets nothing.

    Raises:
      SpecError: Names the file, the line and the key.
    """
    text = read_text(path, what=f"config {path}", remedy="give a YAML file")
    try:
        loader = Yaml12Loader(text)
        node = loader.get_single_node()
        document = loader.construct_document(node) if node is not None else None
    except yaml.YAMLError as error:
        raise SpecError(_describe(path, error)) from error
    except RecursionError as error:
        raise SpecError(f"the config {path} is nested too deeply; write KEY: VALUE lines") from error
    if document is None:
        return TypedOptions({})
    if not isinstance(document, dict) or not isinstance(node, yaml.MappingNode):
        raise SpecError(f"{path} holds {_kind(document)}, not a mapping; write lines such as `workers: 2`")
    lines = {str(key.value): f"{path}, line {key.start_mark.line + 1}" for key, _ in node.value}
    written = {str(key): value for key, value in document.items()}
    if written.get(PARAMS, {}) is None:  # `params:` with nothing below it
        written[PARAMS] = {}
    return typed_values(written, where=str(path), lines=lines, is_yaml=True)


def _describe(path: Path, error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{path}, line {error.problem_mark.line + 1}: {error.problem}; fix the YAML there"
    return f"{path} is not YAML: {str(error).splitlines()[0]}; give a YAML file"


def _kind(document: Any) -> str:
    return "a list" if isinstance(document, list) else repr(document)[:60]
