"""The promises that hold with every version: a handful that `--compat` runs in an environment of each set.

What is here and in test_jobs.py is a part of tests/programs and tests/e2e, in as few processes as possible.
"""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.programs.catalog import PROGRAMS
from tests.programs.in_turn import Done, cluster_of, killed, run_programs
from tests.support.processes import PATIENCE

pytestmark = pytest.mark.timeout(3600)
# A custom train_step, a GAN, a transformer, sparse embeddings, mixed precision.
NAMES = {
    "3": ("train_step_guide", "dcgan", "text_transformer", "efficient_embeddings", "mixed_float16"),
    "legacy": ("custom_loop", "dcgan", "text_transformer", "mixed_float16"),
}
CASES = [(name, keras) for keras, names in NAMES.items() for name in names]


@functools.cache
def run(cluster: str, keras: str) -> dict[str, list[Done]]:
    return run_programs(NAMES[keras], cluster_of(cluster, keras))


@pytest.mark.parametrize(("name", "keras"), CASES)
def test_weights_and_losses_of_2_workers_are_those_of_one_device(name: str, keras: str) -> None:
    [expected] = run("one device", keras)[name]
    for done in run("2 workers", keras)[name]:
        done.trained.check_variables(expected.trained, atol=PROGRAMS[name].atol)
        done.trained.check_history(expected.trained, atol=max(PROGRAMS[name].atol, 1e-4))


@pytest.mark.parametrize(("name", "keras"), [("train_step_guide", "3"), ("custom_loop", "legacy")])
def test_killed_run_that_is_resumed_ends_as_one_device(
    name: str, keras: str, tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    [expected] = run("one device", keras)[name]
    program, cluster = PROGRAMS[name], cluster_of("2 workers", keras)
    options = {"checkpoint_every": program.checkpoint_every}
    with killed(name, cluster, after=program.kill_after, storage=tmp_path, job_options=options) as task:
        wait_until(lambda: task.process.poll() is not None, timeout_s=300 * PATIENCE)
        assert task.process.poll() == -signal.SIGKILL, task.text()
    for done in run_programs([name], cluster, storage=tmp_path, attempt=1, job_options=options)[name]:
        done.trained.check_variables(expected.trained, atol=program.atol)
        assert done.restored_step > 0
