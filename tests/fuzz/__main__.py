"""`python -m tests.fuzz --seeds 1:200 --strategy 2`: which random programs train to something else.

Prints each program that differs from plain Keras on one device, or fails, and at the end how many did.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence

import click

from tests.fuzz.comparison import CLUSTERS, Result, Verdict, compare, of_name, shrink
from tests.fuzz.loops import PREFIX
from tests.fuzz.program import SHARED, STILL

# How programs of fits that a strategy can run are named.
OF_FITS = {"parameter_server": SHARED, "parameter_server_3": STILL}


@click.command(help=__doc__)
@click.option(
    "--seeds", default="1:20", show_default=True, help="FIRST:LAST, or names such as 17~ema and loop17."
)
@click.option(
    "--strategy",
    "strategies",
    default=["2"],
    show_default=True,
    multiple=True,
    type=click.Choice([*CLUSTERS]),
    help="Or workers; several share the runs of plain Keras.",
)
@click.option("--keras", default="3", show_default=True, type=click.Choice(["3", "legacy"]))
@click.option("--loops", is_flag=True, help="Loops of ctx.train_steps in place of fits.")
@click.option("--dtype", default="float64", show_default=True, type=click.Choice(["float64", "float32"]))
@click.option("--shrink", "is_shrunk", is_flag=True, help="Look for the simplest form of what fails.")
@click.option("--at-once", default=25, show_default=True, help="Programs in one set of processes.")
def main(
    seeds: str,
    strategies: tuple[str, ...],
    keras: str,
    loops: bool,
    dtype: str,
    is_shrunk: bool,
    at_once: int,
) -> None:
    prefixes = {strategy: PREFIX if loops else OF_FITS.get(strategy, "") for strategy in strategies}
    try:
        names = {strategy: [*_names(seeds, dtype, prefix=prefix)] for strategy, prefix in prefixes.items()}
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--seeds") from error
    if not all(names.values()):
        raise click.BadParameter(f"{seeds} names no program", param_hint="--seeds")
    has_defects = False
    for strategy in strategies:
        counts: Counter[Verdict] = Counter()
        for start in range(0, len(names[strategy]), at_once):
            for result in _results(names[strategy][start : start + at_once], keras=keras, strategy=strategy):
                counts[result.verdict] += 1
                _say(result, keras=keras, strategy=strategy, is_shrunk=is_shrunk)
        counted = (f"{counts[verdict]} {verdict.value}" for verdict in Verdict if counts[verdict])
        click.echo(f"{strategy}: {', '.join(counted)}")
        has_defects |= any(verdict.is_defect for verdict in counts)
    sys.exit(has_defects)


def _names(seeds: str, dtype: str, *, prefix: str) -> Iterator[str]:
    """Yields the names of programs; raises ValueError for one that is none."""
    suffix = "" if dtype == "float64" else f":{dtype}"
    first, colon, last = seeds.partition(":")
    if colon and last.isdecimal():
        names = [f"{prefix}{seed}{suffix}" for seed in range(int(first), int(last) + 1)]
    else:
        names = seeds.split(",")
    for name in names:
        of_name(name)  # which raises it
        yield name


def _results(names: Sequence[str], *, keras: str, strategy: str) -> Iterator[Result]:
    for result in compare(names, keras=keras, cluster=strategy):
        if result.verdict is Verdict.DIFFERENT:
            # A process says a sentence once, which may have been for the program before.
            (alone,) = compare([result.program.name], keras=keras, cluster=strategy)
            result = alone if alone.verdict is Verdict.TOLD else result
        yield result


def _say(result: Result, *, keras: str, strategy: str, is_shrunk: bool) -> None:
    """Prints what differs, or why that is no defect; nothing for what is equal."""
    name = result.verdict.value
    if result.verdict.is_defect:
        click.echo(f"{name.upper()} ({strategy}) {result.program.describe()}\n{result.details}")
        if is_shrunk:
            found = shrink(result.program, keras=keras, cluster=strategy, verdict=result.verdict)
            click.echo(f"simplest: {found.describe()}")
        click.echo("")
    elif result.verdict is not Verdict.EQUAL:
        click.echo(f"{name} {result.program.name} ({strategy}): {result.details[-150:]!r}")


if __name__ == "__main__":
    main()
