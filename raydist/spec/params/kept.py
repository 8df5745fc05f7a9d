"""A job's params as strict JSON, and back.

JSON has no infinities, no NaN and no tuples. They are kept as text (`.inf`, `-.inf`, `.nan`) and as lists.
`param_types` lists the places at which this was done, so a param that is the text `.inf` stays text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

PARAMS = "params"
PARAM_TYPES = "param_types"

_Place: TypeAlias = tuple[str | int, ...]

_NUMBER, _TUPLE = "number", "tuple"
# As YAML 1.2 writes them.
_NUMBERS = {".inf": math.inf, "-.inf": -math.inf, ".nan": math.nan}


def keep_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `params` as JSON can hold it and, where something was rewritten, `param_types`."""
    places: dict[str, list[list[str | int]]] = {}
    for kind, place in _rewritten(params, ()):
        places.setdefault(kind, []).append(list(place))
    return {PARAMS: _as_json(params), **({PARAM_TYPES: places} if places else {})}


def kept_params(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the params from what `keep_params` returned, as a part of `spec`.

    An older raydist kept NaN and infinities as null, which stays None.
    """
    kinds = _kinds(spec)
    return {name: _restored(value, (name,), kinds) for name, value in spec.get(PARAMS, {}).items()}


def shown_params(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the kept params as they are shown: a text that reads like such a number is in quotes."""
    kinds = _kinds(spec)
    return {
        name: json.dumps(value) if _is_number_text(value) and (name,) not in kinds else value
        for name, value in spec.get(PARAMS, {}).items()
    }


def number_text(number: float) -> str | None:
    """Returns `.inf`, `-.inf` or `.nan`; None for a finite number."""
    if math.isfinite(number):
        return None
    return ".nan" if math.isnan(number) else ".inf" if number > 0 else "-.inf"


def parse_number(text: str) -> float:
    """Returns the number that YAML 1.2 or Python writes as `text`; raises ValueError for anything else."""
    bare = text.strip().lower().removeprefix("+")
    return _NUMBERS[bare] if bare in _NUMBERS else float(text)


def _rewritten(value: Any, place: _Place) -> Iterator[tuple[str, _Place]]:
    match value:
        case float() if not math.isfinite(value):
            yield _NUMBER, place
        case Mapping():
            for key, item in value.items():
                yield from _rewritten(item, (*place, key))
        case list() | tuple():
            if isinstance(value, tuple):
                yield _TUPLE, place
            for index, item in enumerate(value):
                yield from _rewritten(item, (*place, index))


def _as_json(value: Any) -> Any:
    match value:
        case float():
            return number_text(value) or value
        case Mapping():
            return {key: _as_json(item) for key, item in value.items()}
        case list() | tuple():
            return [_as_json(item) for item in value]
        case _:
            return value


def _kinds(spec: Mapping[str, Any]) -> dict[_Place, str]:
    return {tuple(place): kind for kind, places in spec.get(PARAM_TYPES, {}).items() for place in places}


def _restored(value: Any, place: _Place, kinds: Mapping[_Place, str]) -> Any:
    match value:
        case str() if kinds.get(place) == _NUMBER:
            return _NUMBERS.get(value, value)  # a secret is kept as ***
        case Mapping():
            return {key: _restored(item, (*place, key), kinds) for key, item in value.items()}
        case list() | tuple():
            items = [_restored(item, (*place, index), kinds) for index, item in enumerate(value)]
            return tuple(items) if kinds.get(place) == _TUPLE else items
        case _:
            return value


def _is_number_text(value: Any) -> bool:
    return isinstance(value, str) and value in _NUMBERS
