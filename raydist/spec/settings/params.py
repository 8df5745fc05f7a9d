"""A job's params: their defaults, and what overrides them, checked by the type of the default."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from raydist.errors import SpecError
from raydist.spec.near import suggest
from raydist.spec.params.kept import parse_number
from raydist.spec.settings.secrecy import REDACTED, is_secret_name


def check_params(params: object, *, where: str = "") -> Mapping[str, Any]:
    """Returns `params`; raises SpecError unless it maps names to what JSON can hold.

    A run's params are kept as JSON on its storage, so nothing else could be shown or resumed.
    """
    prefix = f"{where}: " if where else ""
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


def _read_yaml(key: str, text: str) -> Any:
    import yaml  # here, because `import raydist` must stay quick

    from raydist.spec.settings.yaml12 import parse_yaml

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
