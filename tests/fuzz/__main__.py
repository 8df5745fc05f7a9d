"""`python -m tests.fuzz --seeds 1:200 --strategy 2`: which random programs train to something else.

Prints each program that differs from plain Keras on one device, or fails, and at the end how many did.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator

import click

from tests.fuzz.comparison import CLUSTERS, Result, Verdict, compare, of_name, shrink
from tests.fuzz.loops import PREFIX
from tests.fuzz.program import SHARED, STILL, Program

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
@click.option("--short", "is_short", is_flag=True, help="Of fits only those that take a second or two.")
@click.option("--dtype", default="float64", show_default=True, type=click.Choice(["float64", "float32"]))
@click.option("--shrink", "is_shrunk", is_flag=True, help="Look for the simplest form of what fails.")
@click.option("--at-once", default=25, show_default=True, help="Programs in one set of processes.")
def main(
    seeds: str,
    strategies: tuple[str, ...],
    keras: str,
    loops: bool,
    is_short: bool,
    dtype: str,
    is_shrunk: bool,
    at_once: int,
) -> None:
    names = {
        strategy: [*_names(seeds, dtype, prefix=PREFIX if loops else OF_FITS.get(strategy, ""))]
        for strategy in strategies
    }
    try:
        programs = {name: of_name(name) for of_strategy in names.values() for name in of_strategy}
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--seeds") from error
    if is_short:
        short = {name for name, one in programs.items() if isinstance(one, Program) and one.is_short}
        names = {strategy: [name for name in known if name in short] for strategy, known in names.items()}
    counts: dict[str, Counter[str]] = {strategy: Counter() for strategy in strategies}
    for start in range(0, len(names[strategies[0]]), at_once):
        for strategy in strategies:
            for result in compare(names[strategy][start : start + at_once], keras=keras, cluster=strategy):
                if result.verdict is Verdict.DIFFERENT:
                    # A process says a sentence once, which may have been for the program before.
                    (alone,) = compare([result.program.name], keras=keras, cluster=strategy)
                    result = alone if alone.verdict is Verdict.TOLD else result
                counts[strategy][result.verdict.value] += 1
                if result.verdict.is_defect:
                    _say(result, keras=keras, strategy=strategy, is_shrunk=is_shrunk)
                elif result.verdict.value in ("told", "explained", "unusable"):
                    said = f"{result.program.name} ({strategy}): {result.details[-150:]!r}"
                    click.echo(f"{result.verdict.value} {said}")
    for strategy, of_verdicts in counts.items():
        counted = (f"{count} {verdict}" for verdict, count in sorted(of_verdicts.items()))
        click.echo(f"{strategy}: {', '.join(counted)}")
    is_defect = {verdict.value: verdict.is_defect for verdict in Verdict}
    sys.exit(any(is_defect[verdict] for of_verdicts in counts.values() for verdict in of_verdicts))


def _names(seeds: str, dtype: str, *, prefix: str) -> Iterator[str]:
    suffix = "" if dtype == "float64" else f":{dtype}"
    first, colon, last = seeds.partition(":")
    if colon and last.isdecimal():
        yield from (f"{prefix}{seed}{suffix}" for seed in range(int(first), int(last) + 1))
    else:
        yield from seeds.split(",")


def _say(result: Result, *, keras: str, strategy: str, is_shrunk: bool) -> None:
    click.echo(f"{result.verdict.value.upper()} ({strategy}) {result.program.describe()}\n{result.details}")
    if is_shrunk:
        found = shrink(result.program, keras=keras, cluster=strategy, verdict=result.verdict)
        click.echo(f"simplest: {found.describe()}")
    click.echo("")


if __name__ == "__main__":
    main()
