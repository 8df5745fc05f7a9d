"""A program without a seed draws anew in each epoch, equally in each worker and in each run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.processes import Cluster, run_function, run_in_turn

pytestmark = pytest.mark.slow

FUNCTIONS = "tests.support.generator_functions"
# What the stock program with a seed repeats in each epoch.
REPEATED = ("map", "decorated map", "map of batches", "map of pairs", "image")


def test_programs_without_a_seed_draw_anew_in_each_epoch_and_those_with_one_as_plain_keras(
    keras: str,
) -> None:
    calls = {"unseeded": (f"{FUNCTIONS}:orders", {}), "seeded": (f"{FUNCTIONS}:orders", {"seed": 3})}
    cluster = Cluster(strategy="multi_worker_mirrored", workers=2, keras=keras)
    tasks = run_in_turn(calls, cluster)
    first, second = (task.arrays for task in tasks["unseeded"])
    for name, epochs in first.items():
        assert len(np.unique(epochs, axis=0)) == 3, name
        if name.startswith("arrays"):  # each worker has its own rows of the global batch
            rows = np.sort(np.concatenate([epochs, second[name]], axis=1), axis=1)
            np.testing.assert_array_equal(rows, np.tile(np.arange(1, 13), (3, 1)), err_msg=name)
        else:
            np.testing.assert_array_equal(second[name], epochs, err_msg=name)
    repeated = (*REPEATED, "arrays", "arrays by batch") if keras == "3" else REPEATED
    seeded = tasks["seeded"][0].arrays
    assert [len(np.unique(seeded[name], axis=0)) for name in repeated] == [1] * len(repeated)


@pytest.mark.parametrize("kind", ["arrays", "map"])
def test_program_without_a_seed_continues_after_a_resume_as_without_it(kind: str, tmp_path: Path) -> None:
    function = f"{FUNCTIONS}:unseeded_epochs"
    [undisturbed] = run_function(function, Cluster(), kind=kind, epochs=4)
    run_function(function, Cluster(), kind=kind, epochs=2, storage=tmp_path)
    [resumed] = run_function(function, Cluster(), kind=kind, epochs=4, storage=tmp_path, attempt=1)
    np.testing.assert_allclose(resumed.arrays["weights"], undisturbed.arrays["weights"], rtol=1e-6)
