"""Plants one defect after another in a copy of raydist, and shows which tests find it.

    python -m tests.planted_defects [--room controller] [--only 3]

Each defect is what a slip of the hand would make: a comparison the wrong way round, a case left out, a file
written in the wrong order. The default tests of its room run on the copy until one fails; where those of the
room are slow, the defect names the test that has to. Prints the first test that fails for each defect, and
those that none finds; the exit code is 1 if there are any. Run it when tests are cut or moved: they have to
find as many as before.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
# Of the other rooms each defect names its test.
TESTS = {
    "controller": ("tests/controller",),
    "planning": ("tests/planning",),
    "order": ("tests/data/order", "tests/data/test_order.py", "tests/data/test_mixing.py"),
    "storage": ("tests/storage",),
}


class Defect(NamedTuple):
    """Attributes: `old`, which stands once in raydist, what is written in its place, and what has to fail."""

    room: str
    old: str
    new: str
    test: str | None = None


DEFECTS = (
    Defect("controller", "return status.incarnation > known.incarnation", "return True"),
    Defect("controller", "if num_lost > max_failures:", "if num_lost >= max_failures:"),
    Defect("controller", "end.step <= restored_step:", "end.step < restored_step:"),
    Defect("controller", "at_s=at_s) < MAX_QUICK_DEATHS:", "at_s=at_s) <= MAX_QUICK_DEATHS:"),
    Defect("controller", "if room > plan.num_workers:", "if room >= plan.num_workers:"),
    Defect("controller", "if chief.checkpoint == self.checkpoint_before:", "if False:"),
    Defect("controller", "or saved_step(chief.checkpoint) >= chief.step", "or True"),
    Defect("controller", "is_another = following is RunState.STARTING", "is_another = True"),
    Defect("controller", "min(since_s, _LONGEST_LOOK_S)", "since_s"),
    Defect("controller", "self._begin_attempt(number + 1)", "self._begin_attempt(number)"),
    Defect("controller", "if status.failure is None)\n        # But", ")\n        # But"),
    Defect("controller", "if has_succeeded(self.plan", "if not has_succeeded(self.plan"),
    Defect("controller", "second < _STEADY * first", "second < first"),
    Defect("planning", "return 1 if num_gpus >= minimum else 0", "return 1 if num_gpus > 0 else 0"),
    Defect("planning", "+ _ROUNDING < needs", "< needs"),
    Defect("planning", "/ needs + _ROUNDING)", "/ needs)"),
    Defect("planning", "tuple(end - first for first, end in spans)", "tuple(end for first, end in spans)"),
    Defect("order", "return (amount + (whole - 1)) // whole", "return amount // whole"),
    Defect("controller", "if gain < _LEAST_GAIN:", "if gain > _LEAST_GAIN:"),
    Defect("planning", "amount - taken.get(name, 0.0) * num_here", "amount - taken.get(name, 0.0)"),
    Defect("planning", "if not hosts or not fits(", "if hosts or not fits("),
    Defect("planning", "if host.node_id not in plan.avoid)", "if host.node_id in plan.avoid)"),
    Defect(
        "planning",
        "task.task_type in listening else None,\n            fenced",
        "True else None,\n            fenced",
    ),
    Defect("controller", "is_replaceable_worker or task.task_type", "False or task.task_type"),
    Defect(
        "planning",
        "TaskType.DATA_WORKER:\n        return None",
        "TaskType.DATA_WORKER and False:\n        return None",
    ),
    Defect(
        "planning",
        "sorted(addresses, key=lambda task: task.index)",
        "sorted(addresses, key=lambda task: -task.index)",
    ),
    Defect("planning", "for power in range(out_of_memory.count(task_type), 0, -1)", "for power in (1,)"),
    Defect(
        "order",
        "key = key_of(self._seed, epoch)\n        groups",
        "key = key_of(self._seed, 0)\n        groups",
    ),
    Defect("order", "key_of(self._seed, epoch, lane + 1, number)", "key_of(self._seed, epoch, number)"),
    Defect("order", "while (outside := values >= size).any():", "if (outside := values >= size).any():"),
    Defect("order", "min(part, extra)", "min(part, base)"),
    Defect("order", "return -(-lane * size // self.num_lanes)", "return lane * size // self.num_lanes"),
    Defect("order", "while bounds[-1] < end:", "while bounds[-1] <= end - self._window_rows:"),
    Defect("order", "rest * weight + whole // 2) // whole", "rest * weight) // whole"),
    Defect("order", "return self.num_examples // self.batch_size\n", "return self.per_epoch\n"),
    Defect("order", "if not self.steps.is_whole:", "if self.steps.is_whole:"),
    Defect("order", "offset = int(self.firsts[number]) - begin", "offset = -begin"),
    Defect("storage", "!= (step, attempt):\n        raise", "!= (step, attempt) and False:\n        raise"),
    Defect("storage", "return -attempt, -step", "return -step, -attempt"),
    Defect("storage", "if size_bytes != file.size_bytes:", "if False:"),
    Defect("storage", "if crc32 != file.crc32:", "if False:"),
    Defect("storage", "if step not in keep_steps:", "if step in keep_steps:"),
    Defect("storage", "if attempt < newest_attempt:", "if attempt <= newest_attempt:"),
    Defect("storage", 'path.is_absolute() or ".." in path.parts', "path.is_absolute()"),
    Defect("storage", "return max(found, key=_step_of, default=None)", "return next(iter(found), None)"),
    Defect("storage", "prefix=prefix), default=-1) + 1", "prefix=prefix), default=-1)"),
    Defect("storage", "if any(rival < name for rival in self._rivals()):", "if False:"),
    Defect("storage", "return now_s - (begun.updated_at_s or 0.0) < LIVES_WITHIN_S", "return True"),
    Defect(
        "storage", "if self._unfinished and (is_last or not is_grown):", "if self._unfinished and is_last:"
    ),
    Defect(
        "data",
        "values = self._of_pass(epoch * self._passes + kind // 2, places[is_one])",
        "values = self._of_pass(epoch * self._passes, places[is_one])",
        "tests/data/test_mix.py",
    ),
    Defect(
        "data",
        "seed=None if seed is None else key_of(seed, number + 1)",
        "seed=None if seed is None else key_of(seed, 1)",
        "tests/data/test_mix.py",
    ),
    Defect(
        "data",
        "own = [array[:, first - begin : stop - begin] for",
        "own = [array[:, : stop - first] for",
        "tests/data/test_pipelines.py",
    ),
    Defect(
        "data",
        "start_step=start_step, read=read, finish=without_counts",
        "start_step=0, read=read, finish=without_counts",
        "tests/data/test_mix.py",
    ),
    Defect(
        "training",
        "base + tf.cast(replica < extra, num_global.dtype)",
        "base + tf.cast(replica <= extra, num_global.dtype)",
        "tests/training/test_plain_pipelines.py::test_rows_of_the_workers_make_up_each_global_batch[2]",
    ),
    Defect(
        "training",
        "tf.cond(element.num_examples > 0,",
        "tf.cond(element.num_examples >= 0,",
        "tests/training/test_equality.py::test_batch_with_fewer_examples_than_replicas_counts_each_once[3]",
    ),
    Defect(
        "training",
        "loss * tf.cast(1.0 / num_replicas() if share is None else share, loss.dtype)",
        "loss * tf.cast(1.0 / num_replicas(), loss.dtype)",
        "tests/training/test_equality.py::test_sparse_gradients_of_uneven_batches_equal_one_device[legacy]",
    ),
    Defect(
        "training",
        "return values if share is None else",
        "return values if True else",
        "tests/training/test_equality.py::test_batch_with_fewer_examples_than_replicas_counts_each_once[3]",
    ),
    Defect(
        "training",
        "tf.math.divide_no_nan(tf.ones_like(weight), weight)",
        "tf.ones_like(weight)",
        "tests/training/test_norms.py::"
        "test_mean_loss_with_statistics_of_the_batch_trains_as_one_device[train step-mirrored-2-keras3]",
    ),
    Defect(
        "training",
        "own = tf.where(share > 0, amount, tf.zeros_like(amount))",
        "own = amount",
        "tests/training/test_equality.py::test_batch_with_fewer_examples_than_replicas_counts_each_once[3]",
    ),
    Defect(
        "training",
        "weighted = [weighted_gradient(one) for one in gradients]",
        "weighted = list(gradients)",
        "tests/training/test_accumulation.py::"
        "test_update_of_several_batches_is_that_of_a_larger_one[2 workers-3-quick]",
    ),
    Defect(
        "training",
        "return 1, rest or self.size",
        "return 1, self.size",
        "tests/training/test_accumulation.py::"
        "test_update_of_several_batches_is_that_of_a_larger_one[one device-3-quick]",
    ),
    Defect(
        "training",
        "[sums] = _reduced([tf.stack(own)], context)",
        "sums = tf.stack(own)",
        "tests/training/test_communication.py::"
        "test_compressed_gradients_are_off_by_the_bound_that_is_stated_at_most[3-2 workers-fp16]",
    ),
    Defect(
        "training",
        "total / tf.cast(self._num_replicas, total.dtype)",
        "total / tf.cast(len(self._own), total.dtype)",
        "tests/training/test_virtual_replicas.py::"
        "test_results_have_the_bits_of_one_worker[3-4-2 workers-loops]",
    ),
    Defect(
        "training",
        "return replica_tree.summed(range(self._num_replicas), known, tf.add)",
        "return tf.add_n(list(known.values()))",
        "tests/training/test_virtual_replicas.py::"
        "test_results_have_the_bits_of_one_worker[3-5-3 workers-unequal]",
    ),
    Defect(
        "training",
        "return self.own_replicas.start + replica_id",
        "return replica_id",
        "tests/training/test_virtual_replicas.py::"
        "test_results_have_the_bits_of_one_worker[3-4-2 workers-loops]",
    ),
    Defect(
        "training",
        "(seed + replica * _SEED_STRIDE)",
        "(seed + _SEED_STRIDE)",
        "tests/training/test_virtual_replicas.py::"
        "test_results_have_the_bits_of_one_worker[3-4-2 workers-loops]",
    ),
    Defect(
        "training",
        "_totals.num_changes += 1",
        "_totals.num_changes += 0",
        "tests/training/test_keras_patches.py::"
        "TestUsersOwnFit::test_callbacks_see_the_logs_of_all_replicas_after_each_batch[2 workers-3]",
    ),
    Defect(
        "training",
        "skip, passes = self.start.epoch * steps_per_epoch + self.start.step, 0",
        "skip, passes = self.start.epoch * steps_per_epoch, 0",
        "tests/training/test_plain_pipelines.py::"
        "test_run_that_resumes_inside_an_epoch_ends_as_the_undisturbed_one[3-4]",
    ),
    Defect(
        "training",
        "self._skip.assign(skip * self.groups.size)",
        "self._skip.assign(skip)",
        "tests/training/test_accumulation.py::test_resumed_run_takes_up_each_batch_once[2 workers-3]",
    ),
    Defect(
        "training",
        "self._skip.assign(0)",
        "self._skip.assign(self._skip)",
        "tests/training/test_plain_pipelines.py::"
        "test_run_that_resumes_inside_an_epoch_ends_as_the_undisturbed_one[3-None]",
    ),
    Defect(
        "training",
        "if unread is Unread.AFTER_PASS and int(dataset.cardinality()) > 0:",
        "if False:",
        "tests/training/test_accumulation.py::test_resumed_run_takes_up_each_batch_once[2 workers-3]",
    ),
    Defect(
        "training",
        "if dataset.options().deterministic is False:",
        "if False:",
        "tests/training/test_fit_arguments.py::"
        "test_workers_of_2_devices_find_what_one_device_finds[in any order-in order-3]",
    ),
    Defect(
        "training",
        "min(self._size, left, self._pauses.limit())",
        "min(self._size, left)",
        "tests/training/test_packing.py",
    ),
    Defect(
        "training",
        "step_before // count < step // count",
        "step_before // count <= step // count",
        "tests/training/test_schedule.py",
    ),
    Defect(
        "training",
        "arrays[name] = value.copy()",
        "arrays[name] = value",
        "tests/training/test_callback_state.py",
    ),
    Defect(
        "training",
        "if self.step_in_epoch:\n            trackables",
        "if False:\n            trackables",
        "tests/training/test_accumulation.py::test_resumed_run_takes_up_each_batch_once[2 workers-3]",
    ),
    Defect(
        "training",
        "start += part.shape[0]",
        "start = part.shape[0]",
        "tests/training/test_parameter_server.py::"
        "test_a_resumed_run_may_have_another_number_of_ps[other shards]",
    ),
    Defect(
        "training",
        "total if is_sum else total / len(stack)",
        "total",
        "tests/training/test_virtual_variables.py::test_weight_is_assigned_once_and_a_queue_by_each_replica",
    ),
    Defect(
        "training",
        "grads = gradients.overflowed_halves(gradients.summed_over_replicas(grads), halves)",
        "grads = gradients.summed_over_replicas(grads)",
        "tests/training/test_loss_rules.py::"
        "test_step_is_skipped_where_only_the_sum_over_replicas_overflows[2 devices-3]",
    ),
    Defect(
        "training",
        "return weights * tf.math.divide_no_nan(valid, replica_share.in_proportion(valid))",
        "return weights",
        "tests/programs/test_equality.py::"
        "test_program_trains_and_shows_what_one_device_does_without_a_false_alarm[masked_tagger-3]",
    ),
    Defect(
        "training",
        "(replica_share.weighted_gradient(gradient), variable) for",
        "(gradient, variable) for",
        "tests/training/test_loss_rules.py::"
        "test_weights_and_losses_equal_those_of_one_device[function, mean-2 devices-legacy]",
    ),
    Defect(
        "training",
        "base + (context.input_pipeline_id < extra)",
        "base",
        "tests/training/test_parameter_server.py::test_losses_that_own_steps_return_are_reported[3-2]",
    ),
    Defect(
        "training",
        "int(lasts[:, -1].sum() - 1)",
        "int(lasts[:, -1].sum())",
        "tests/training/test_parameter_server.py::test_losses_that_own_steps_return_are_reported[3-2]",
    ),
    Defect(
        "training",
        "self._metrics.read() if position.step_in_epoch else self._metrics.tally()",
        "self._metrics.tally()",
        "tests/training/test_parameter_server.py::"
        "test_metrics_of_an_epoch_that_was_cut_are_of_the_whole_epoch[3]",
    ),
    Defect(
        "training",
        "max(0, self.epoch - self.initial_epoch)",
        "self.epoch",
        "tests/training/test_fit_arguments.py::"
        "test_fit_from_a_later_epoch_on_takes_the_examples_that_keras_takes[3-ctx.fit]",
    ),
    Defect(
        "training",
        "optimizer.dynamic_growth_steps - 1)",
        "optimizer.dynamic_growth_steps)",
        "tests/training/test_optimizers.py::"
        "test_optimizers_train_what_one_device_trains[central_storage-2-keras3]",
    ),
    Defect(
        "training",
        "tf.add_n(rows) * num_replicas())",
        "tf.add_n(rows))",
        "tests/training/test_accumulation.py::"
        "test_update_of_several_batches_is_that_of_a_larger_one[2 workers-3-quick]",
    ),
    Defect(
        "training",
        "_weighted(one, share * num_replicas(), metrics) for one",
        "_weighted(one, share, metrics) for one",
        "tests/training/test_accumulation.py::"
        "test_update_of_several_batches_is_that_of_a_larger_one[2 workers-3-quick]",
    ),
    Defect(
        "training",
        "return tf.add_n(list(self._values.values())) if len(self._values) > 1 else self._values[0]",
        "return self._values[0]",
        "tests/training/test_metric_check.py::test_replicas_of_a_closure_add_up_what_they_have_counted",
    ),
    Defect(
        "training",
        "self._next_step += turns * unroll",
        "self._next_step += turns",
        "tests/training/test_ps_messages.py::test_one_worker_trains_what_one_device_trains[used_twice-3]",
    ),
)


def plant(defect: Defect, tree: Path) -> None:
    """Writes the defect into the copy; raises LookupError unless its place is there once."""
    found = [path for path in (tree / "raydist").rglob("*.py") if defect.old in path.read_text()]
    if len(found) != 1 or found[0].read_text().count(defect.old) != 1:
        raise LookupError(
            f"{defect.old!r} stands in {[path.name for path in found]}, and has to be there once"
        )
    found[0].write_text(found[0].read_text().replace(defect.old, defect.new))


def first_failure(defect: Defect, tree: Path) -> str | None:
    """Returns the first test that fails, and how; None where all pass. Raises LookupError where none ran."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
    # A test that is named may be a slow one.
    asked = ["-m", "", defect.test] if defect.test else [*TESTS[defect.room]]
    environ = {**os.environ, "PYTHONPATH": str(tree), "COLUMNS": "400"}  # pytest cuts off what it says
    done = subprocess.run(
        [*command, *asked], cwd=tree, env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise LookupError(f"{asked} are no tests: {done.stdout[-300:]}{done.stderr[-300:]}")
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return None if done.returncode == 0 else (lines or [done.stdout[-300:]])[0]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--room", choices=sorted({defect.room for defect in DEFECTS}))
    parser.add_argument("--only", type=int, help="the number of one defect")
    options = parser.parse_args()
    missed = 0
    for number, defect in enumerate(DEFECTS):
        if options.room not in (None, defect.room) or options.only not in (None, number):
            continue
        with tempfile.TemporaryDirectory(prefix="raydist-defect-") as folder:
            tree = Path(folder)
            for name in ("raydist", "tests", "jobs", "cluster_configs"):
                shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
            shutil.copy(ROOT / "pyproject.toml", tree)
            plant(defect, tree)
            found = first_failure(defect, tree)
        missed += found is None
        print(f"{number} {defect.room}: {defect.new.strip()!r}: {found or 'NOT FOUND'}", flush=True)
    print(f"{missed} not found")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
