"""`@raydist.job`: gives a train function its defaults."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar, overload

from raydist.errors import SpecError
from raydist.spec.definition import TypedOptions
from raydist.spec.settings.run_options import JobDefaults
from raydist.spec.settings.typed import typed_values

if sys.version_info >= (3, 11):
    from typing import Unpack
else:
    from typing_extensions import Unpack

P = ParamSpec("P")
R = TypeVar("R")


class Job(Generic[P, R]):
    """A train function with its defaults, as `@raydist.job` makes it. Calling it calls the function.

    Example:
        @raydist.job(workers=2)
        def train(ctx: raydist.TrainContext): ...

        print(train.name, train.defaults["workers"])

    Attributes:
      function: The train function.
      defaults: The decorator's arguments, typed, `params` included.
    """

    def __init__(self, function: Callable[P, R], defaults: TypedOptions) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.defaults = defaults

    @property
    def name(self) -> str:
        """The function's name."""
        return getattr(self.function, "__name__", type(self.function).__name__)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<raydist job {self.name}>"


@overload
def job(function: Callable[P, R], /, **defaults: Unpack[JobDefaults]) -> Job[P, R]: ...
@overload
def job(**defaults: Unpack[JobDefaults]) -> Callable[[Callable[P, R]], Job[P, R]]: ...
def job(function: Callable[..., Any] | None = None, /, **defaults: Any) -> Any:
    """Makes a job of a train function: `@raydist.job` or `@raydist.job(workers=2, params={...})`.

    Example:
        @raydist.job(workers=2, params={"epochs": 3, "learning_rate": 1e-3})
        def train(ctx: raydist.TrainContext):
            print(ctx.params["epochs"])

    Args:
      function: The train function, which is called with a TrainContext in each task.
      **defaults: Fields of JobSpec (the command line's options with `_`) and `params`; the config, and
        the command line or keywords, come before them. A job that declares no params takes any.

    Raises:
      SpecError: An unknown name, or a value of the wrong type or range.
    """
    if function is not None and not callable(function):
        raise SpecError(f"@raydist.job is given {function!r}; use @raydist.job or @raydist.job(option=value)")
    caller = sys._getframe(1)
    typed = typed_values(defaults, where=f"{caller.f_code.co_filename}, line {caller.f_lineno}")
    return Job(function, typed) if function is not None else lambda decorated: Job(decorated, typed)
