"""Programs that are killed in the middle and continue end as one device ends that nobody disturbs."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.programs.catalog import PROGRAMS, Expected, names
from tests.programs.in_turn import Done, cluster_of, killed, run_programs
from tests.programs.outcome import Outcome
from tests.support.selected import selected

# Three runs each.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@functools.cache
def run_undisturbed(programs: tuple[str, ...], keras: str) -> dict[str, list[Done]]:
    return run_programs(programs, cluster_of("one device", keras))


@pytest.fixture
def undisturbed(request: pytest.FixtureRequest, program: str, keras: str) -> Outcome:
    """The undisturbed run on one device."""
    [done] = run_undisturbed(selected(request, "program", keras=keras), keras)[program]
    return done.trained


def cases() -> Iterator[object]:
    """Yields each program with each Keras, on 2 workers and 2 devices in turn."""
    repeated = pytest.mark.exhaustive(covered_by="two programs; tests/compat; training/test_checkpoints.py")
    for shift, keras in enumerate(("3", "legacy")):
        for place, program in enumerate(names(keras, Expected.EQUAL)):
            cluster = ("2 workers", "2 devices")[(place + shift) % 2]
            is_repeated = keras != "3" or program not in ("dcgan", "train_step_keras2")
            yield pytest.param(program, keras, cluster, marks=repeated if is_repeated else ())


@pytest.mark.parametrize(("program", "keras", "cluster"), list(cases()))
def test_killed_program_ends_as_the_undisturbed_one(
    undisturbed: Outcome,
    program: str,
    keras: str,
    cluster: str,
    tmp_path: Path,
    wait_until: Callable[..., None],
) -> None:
    options = {"checkpoint_every": PROGRAMS[program].checkpoint_every}
    with killed(
        program,
        cluster_of(cluster, keras),
        after=PROGRAMS[program].kill_after,
        storage=tmp_path,
        job_options=options,
    ) as task:
        wait_until(lambda: task.process.poll() is not None, timeout_s=300)
        assert task.process.poll() == -signal.SIGKILL, task.text()
    resumed = run_programs(
        [program], cluster_of(cluster, keras), storage=tmp_path, attempt=1, job_options=options
    )
    for done in resumed[program]:
        assert done.restored_step > 0
        done.trained.check_variables(undisturbed, atol=PROGRAMS[program].atol)
        done.trained.check_history(undisturbed, atol=max(PROGRAMS[program].atol, 1e-4))
