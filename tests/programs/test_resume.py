"""Programs that are killed in the middle and continue end as one device ends that nobody disturbs."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.programs.catalog import PROGRAMS, Expected, names
from tests.programs.in_turn import CLUSTERS, Done, cluster_of, killed, run_programs
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
    """Yields each program with each Keras on a cluster of its own.

    All of them on all clusters are 252 cases. They take 45 minutes, and what failed on one failed on all.
    """
    for shift, keras in enumerate(("3", "legacy")):
        for place, program in enumerate(names(keras, Expected.EQUAL)):
            cluster = list(CLUSTERS)[(place + 2 * shift) % len(CLUSTERS)]
            yield pytest.param(program, keras, cluster, id=f"{program}-keras {keras}-{cluster}")


@pytest.mark.exhaustive(
    "keras legacy",
    "autoencoder",
    "mixed_float16",
    "own_fit",
    "returned_losses",
    "bilstm",
    "captcha_ctc",
    "clipping",
    "convnet",
    "custom_loop",
    "distillation",
    "efficient_embeddings",
    "ema",
    "endpoint_layer",
    "graph_attention",
    "imbalanced",
    "issue_tickets",
    "masked_tagger",
    "miniature_gpt",
    "mixed_bfloat16",
    "rate_callbacks",
    "recommender",
    "schedules",
    "steps_loop",
    "text_transformer",
    "timeseries_transformer",
    "train_step_compiled",
    "train_step_guide",
    "vae",
    "vision_transformer",
    "vision_transformer_ops",
    "weight_decay",
    "wgan_gp",
    "wide_deep",
    covered_by="Keras 3; dcgan; tests/compat; training/test_checkpoints.py",
)
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
