"""A job's params: their defaults, what overrides them, and how a run's record keeps them as JSON.

A value is checked by the type of its default. JSON has no infinities, no NaN and no tuples: they are kept as
text (`.inf`, `-.inf`, `.nan`) and as lists. `param_types` lists the places at which this was done, so a param
that is the text `.inf` stays text.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from raydist.errors import SpecError
from raydist.spec.secrecy import REDACTED, is_secret_name
from raydist.spec.text import suggest

PARAMS = "params"
PARAM_TYPES = "param_types"

_Place: TypeAlias = tuple[str | int, ...]

_NUMBER, _TUPLE = "number", "tuple"
# As YAML 1.2 writes them.
_NUMBERS = {".inf": math.inf, "-.inf": -math.inf, ".nan": math.nan}


def keep_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `params` as JSON can hold it and, where something was rewritten, `param_types`."""
    places: dict[str, list[list[str | int]]] = {}
    kept = {PARAMS: _as_json(params, [], places)}
    return {**kept, PARAM_TYPES: places} if places else kept


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


def _as_json(value: Any, place: list[str | int], places: dict[str, list[list[str | int]]]) -> Any:
    """Returns what JSON can hold of the value at a place, and adds to `places` what was rewritten there."""
    match value:
        case float() if not math.isfinite(value):
            places.setdefault(_NUMBER, []).append(place)
            return number_text(value)
        case Mapping():
            return {key: _as_json(item, [*place, key], places) for key, item in value.items()}
        case list() | tuple():
            if isinstance(value, tuple):
                places.setdefault(_TUPLE, []).append(place)
            return [_as_json(item, [*place, index], places) for index, item in enumerate(value)]
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


def check_params(params: object, *, where: str = "") -> Mapping[str, Any]:
    """Returns `params`; raises SpecError unless it maps names to what JSON can hold.

    A run's params are kept as JSON on its storage, so nothing else could be shown or resumed.
    """
    prefix = _at(where)
    if not isinstance(params, Mapping):
        raise SpecError(f"{prefix}params is {params!r}; write a mapping of names to values")
    for key, value in params.items():
        if not isinstance(key, str):
            raise SpecError(f"{prefix}params has the key {key!r}; write text")
        try:
            is_plain = _is_plain(value)
        except RecursionError:  # a list that holds itself
            is_plain = False
        if not is_plain:
            raise SpecError(
                f"{prefix}params.{key} is of type {type(value).__name__}; "
                "use numbers, text, true, false, None, lists and mappings of these"
            )
    return params if isinstance(params, ParamTexts) else dict(params)


class MissingParamError(KeyError):
    """A train function asked for a param that its run does not have."""

    def __init__(self, name: object, known: Iterable[str]) -> None:
        super().__init__(name)
        self.known = tuple(known)

    def __str__(self) -> str:
        has = f"has {', '.join(self.known)}" if self.known else "has none"
        return (
            f"ctx.params has no {self.args[0]!r}: the run {has}. Give it with -p {self.args[0]}=VALUE, or a "
            "default in @raydist.job(params={...})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.known)


class RunParams(dict[str, Any]):
    """The params of a run, which says those it has where another one is asked for."""

    def __missing__(self, name: str) -> Any:
        raise MissingParamError(name, self)


class ParamTexts(dict[str, str]):
    """Params as the command line gives them: text, each to be read by the type of its default."""

    @classmethod
    def parse(cls, written: Iterable[str]) -> ParamTexts:
        """Reads `key=value` items; of one key the last holds."""
        texts = cls()
        for item in written:
            key, equals, value = item.partition("=")
            if not equals or not key:
                lacks = "value" if key else "key"
                raise SpecError(f"-p {item!r} has no {lacks}; write -p KEY=VALUE")
            texts[key] = value
        return texts


def merge_params(
    defaults: Mapping[str, Any], layers: Iterable[tuple[Mapping[str, Any], str]] = ()
) -> dict[str, Any]:
    """Returns the final params.

    Args:
      defaults: The job's own, which name the params that exist and their types. A job that declares none
        takes any, with values of any type.
      layers: Values, checked by `check_params`, and where they are written, the lowest first. ParamTexts are
        read by the types of the defaults.
    """
    params = dict(defaults)
    for layer, where in layers:
        for key, value in layer.items():
            _check_known(key, defaults, where=where)
            default = defaults.get(key)
            is_text = isinstance(layer, ParamTexts)
            params[key] = (
                _from_text(key, default, value) if is_text else _typed(key, default, value, where=where)
            )
    return params


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(each) for each in value)
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(each) for key, each in value.items())
    return value is None or isinstance(value, bool | int | float | str)


def _check_known(key: str, defaults: Mapping[str, Any], *, where: str = "") -> None:
    if defaults and key not in defaults:
        raise SpecError(f"{_at(where)}params.{key}: the job has no such param; {suggest(key, defaults)}")


def _typed(key: str, default: Any, value: Any, *, where: str) -> Any:
    """Checks a typed value against the type of the default; None takes any."""
    wanted: str
    match default:
        case bool():
            wanted, fits = "true or false", isinstance(value, bool)
        case int():
            wanted, fits = "a whole number", isinstance(value, int) and not isinstance(value, bool)
        case float():
            wanted, fits = "a number", isinstance(value, int | float) and not isinstance(value, bool)
            fits = fits and not (isinstance(value, int) and abs(value) > sys.float_info.max)
            value = float(value) if fits else value
        case str():
            wanted, fits = "text (in quotes)", isinstance(value, str)
        case list() | tuple():
            wanted, fits = "a list", isinstance(value, list | tuple)
        case Mapping():
            wanted, fits = "a mapping", isinstance(value, Mapping)
        case _:
            return value
    if not fits:
        raise SpecError(_ill_typed(key, default, value, wanted, where=where))
    return value


def _from_text(key: str, default: Any, text: str) -> Any:
    """Reads the command line's text by the type of the default; as YAML 1.2 where that is None or a list."""
    parser: Callable[[str], Any]
    match default:
        case str():
            return text
        case bool():
            parser, wanted = {"true": True, "false": False}.__getitem__, "true or false"
            text = text.lower()
        case int():
            parser, wanted = int, "a whole number"
        case float():
            parser, wanted = parse_number, "a number"
        case _:
            return _typed(key, default, _read_yaml(key, text), where="")
    try:
        return parser(text)
    except (ValueError, KeyError):
        raise SpecError(_ill_typed(key, default, text, wanted)) from None


def reads_as_text(text: str) -> bool:
    """Whether `-p` takes a text as it is, also where the job's default is no text."""
    try:
        return bool(_read_yaml("text", text) == text)
    except SpecError:
        return True


def _read_yaml(key: str, text: str) -> Any:
    import yaml  # here, because `import raydist` must stay quick

    from raydist.spec.yaml12 import parse_yaml

    try:
        return check_params({key: parse_yaml(text)})[key]
    except (yaml.YAMLError, RecursionError):
        shown = REDACTED if is_secret_name(key) else repr(text)
        raise SpecError(
            f"params.{key} is {shown}, which is not YAML; write a value such as 3, [1, 2] or 'text'"
        ) from None


def _ill_typed(key: str, default: Any, value: Any, wanted: str, *, where: str = "") -> str:
    if is_secret_name(key):
        return f"{_at(where)}params.{key} (not shown, as its name says it is a secret) is not {wanted}"
    return f"{_at(where)}params.{key} is {value!r}; write {wanted}, as its default is {default!r}"


def _at(where: str) -> str:
    return f"{where}: " if where else ""
