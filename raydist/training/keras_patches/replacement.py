"""Replaces private parts of a library, each only where it fits what it was written for."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from raydist.errors import UnsupportedError
from raydist.known_versions import KNOWN

# The end of `Replacement.parameters` where the new function passes on what it does not know.
_OTHERS = "..."


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """One function or method of a library that raydist replaces.

    Attributes:
      owner: The class or module that holds it.
      parameters: The names of its parameters, in order. With `...` at the end, those that the new function
        relies on; there may be others before and behind them.
      fingerprints: `fingerprint_of` each known source, where the new function does the work of the old one or
        relies on how that does it. Empty where it merely wraps it.
      make: Makes the new function from the old one, as `around` does; None where a subclass overrides it.
      reason: What is wrong with the old one, with the upstream issue.
    """

    owner: Any
    name: str
    parameters: str
    fingerprints: tuple[str, ...] = ()
    make: Callable[[Callable[..., Any]], Callable[..., Any]] | None
    reason: str

    @property
    def found(self) -> str:
        return fingerprint_of(inspect.getattr_static(self.owner, self.name))

    @property
    def fits(self) -> bool:
        """Whether the function is there and takes what the new one relies on."""
        function = inspect.getattr_static(self.owner, self.name, None)
        if function is None:
            return False
        found = list(inspect.signature(inspect.unwrap(function)).parameters)
        wanted = self.parameters.split()
        if wanted[-1] != _OTHERS:
            return found == wanted
        rest = iter(found)
        return all(name in rest for name in wanted[:-1])  # each behind the one before

    @property
    def is_known(self) -> bool:
        """Whether its source is one that it was written for."""
        return not self.fingerprints or self.found in self.fingerprints

    def __str__(self) -> str:
        return f"{getattr(self.owner, '__qualname__', self.owner.__name__)}.{self.name}"


def around(new: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns a `make` whose function calls `new` with the old function, and then what it was called with."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def function(*args: Any, **kwargs: Any) -> Any:
            return new(original, *args, **kwargs)

        return function

    return make


def replaces(
    owner: Any, names: str, parameters: str, *fingerprints: str, because: str, is_maker: bool = False
) -> Callable[[Any], Any]:
    """Marks a function that is called in place of a library's, with that one first; see `marked_in`.

    A class takes the place of the library's. See `Replacement` for the arguments.

    Args:
      owner: One, or a tuple of several.
      names: One, or several with spaces between them.
      is_maker: Whether the function makes the new one from the library's.
    """

    def mark(new: Any) -> Any:
        make = new if is_maker else (lambda original: new) if isinstance(new, type) else around(new)
        new.replaces = [
            *getattr(new, "replaces", ()),
            *(
                Replacement(
                    owner=one,
                    name=name,
                    parameters=parameters,
                    fingerprints=fingerprints,
                    make=make,
                    reason=because,
                )
                for one in (owner if isinstance(owner, tuple) else (owner,))
                for name in names.split()
            ),
        ]
        return new

    return mark


def overrides(parameters: str, *fingerprints: str, because: str) -> Callable[[Callable[..., Any]], Any]:
    """Marks a method that stands before one of a library's class, which it calls by `super()`."""

    def marked(method: Callable[..., Any]) -> Callable[..., Any]:
        mark = {"parameters": parameters, "fingerprints": fingerprints, "reason": because}
        method.overrides = mark  # type: ignore[attr-defined]
        return method

    return marked


def marked_in(*modules: ModuleType) -> tuple[Replacement, ...]:
    """Returns what functions and classes of some modules replace, and what methods of classes override."""
    defined = [
        one
        for module in modules
        for one in vars(module).values()
        if getattr(one, "__module__", None) == module.__name__
    ]
    classes = [one for one in defined if isinstance(one, type)]
    return (
        *(item for one in defined for item in vars(one).get("replaces", ())),
        *(
            Replacement(owner=one.__bases__[0], name=name, make=None, **mark)
            for one in classes
            for name, mark in _overrides_of(one)
        ),
    )


def _overrides_of(subclass: type) -> Iterator[tuple[str, Any]]:
    for name, method in vars(subclass).items():
        if (mark := getattr(method, "overrides", None)) is not None:
            yield name, mark


def lowered(owner: type, names: Sequence[str]) -> type:
    """Returns a class of some methods of a library's class, for a subclass to override; see `put_below`.

    None of the methods may call `super()`, which goes on behind the class that it was written in.
    """
    methods = {name: vars(owner)[name] for name in names if name in vars(owner)}
    return type(owner)(owner.__name__, owner.__bases__, {"__module__": owner.__module__, **methods})


def put_below(owner: type, subclass: type) -> None:
    """Puts a subclass of one of the bases of a library's class in that base's place.

    A subclass of what `lowered` has made takes the place of all bases, and the owner loses what went there.
    The methods then look like those that they override: other libraries read their signatures.
    """
    [stock] = subclass.__bases__
    for name, _ in _overrides_of(subclass):
        functools.update_wrapper(vars(subclass)[name], getattr(stock, name))
    if stock in owner.__bases__:
        owner.__bases__ = tuple(subclass if base is stock else base for base in owner.__bases__)
        return
    for name in [name for name, method in vars(stock).items() if inspect.isfunction(method)]:
        delattr(owner, name)
    owner.__bases__ = (subclass,)


def fingerprint_of(function: Any) -> str:
    """Returns a short hash of the function's source."""
    return hashlib.sha256(inspect.getsource(inspect.unwrap(function)).encode()).hexdigest()[:12]


def apply(replacements: Sequence[Replacement], *, library: ModuleType, tensorflow: str) -> str | None:
    """Applies all replacements, or none.

    Returns:
      A sentence for the run's notes if the library, or TensorFlow, is newer than raydist knows.

    Raises:
      UnsupportedError: The library is older than raydist knows, or a function is not one that it knows.
    """
    name, version = library.__name__, library.__version__
    versions = KNOWN[name]
    install, without = f'"{name}{versions.requirement}"', "or go without the patches with --no-patch-keras"
    if versions.is_older(version):
        raise UnsupportedError(
            f"{name} is {version}; raydist patches {versions.oldest} or later: install {install}, {without}"
        )
    if changed := [str(item) for item in replacements if not item.fits]:
        raise UnsupportedError(
            f"{name} {version} differs from the versions that raydist patches in {', '.join(changed)}: "
            f"install {install}, {without}"
        )
    if unknown := [str(item) for item in replacements if not item.is_known]:
        another = "" if versions.is_newer(version) else "another release of "
        raise UnsupportedError(
            f"{name} {version} has another source than raydist knows in {', '.join(unknown)}: "
            f"install {another}{install}, {without}"
        )
    for item in replacements:
        if item.make is not None:
            setattr(item.owner, item.name, item.make(getattr(item.owner, item.name)))
    newer = [
        f"{what} {found} is newer than {known.newest}, the last version that raydist knows"
        for what, found, known in ((name, version, versions), ("TensorFlow", tensorflow, KNOWN["tensorflow"]))
        if known.is_newer(found)
    ]
    same = f"every function of {name} that raydist patches is one that it knows, so it patches them"
    return "; ".join([*newer, same]) if newer else None
