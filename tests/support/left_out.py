"""Which tests the default run leaves to `--runslow`, and `--runslow` to `--exhaustive`, which takes hours.

By file the beginnings of the names of its tests, without `test_`. What the default run has shows each promise
once: a job under each strategy, a killed worker, parameter server and host, a detached run, S3, Ctrl-C, the
README's first command, Keras 3 on 2 workers or 2 devices. What goes shows the same on another cluster, with
the other Keras or at another moment, or something that rarely changes and takes long.

`--runslow`, and with it CI, adds all others but those that exhaustive.py lists, each with what covers it.
`--exhaustive` runs each case, and `--exhaustive-shard 2/10` one part of ten of what it adds.
`--runslow-shard 2/8` runs one part of eight of what `--runslow` adds, in whole files.
"""

from __future__ import annotations

import enum
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.support.exhaustive import EXHAUSTIVE


class Level(enum.IntEnum):
    """The lowest level that runs a test; higher levels include it."""

    DEFAULT = 0
    RUNSLOW = 1
    EXHAUSTIVE = 2


@dataclass(frozen=True)
class Case:
    """A test as pytest collects it.

    Attributes:
      path: Its file, from tests/ on.
      name: As pytest names it within the file, with its parameters.
      is_marked: Whether it has the mark `slow`.
    """

    path: str
    name: str
    is_marked: bool = False


ALL = ("",)
# The same with tf_keras in tests/training, which only --exhaustive has: tests/compat runs jobs and four
# programs with it. These keep theirs at the level of the others.
LEGACY = re.compile(r"\[.*(legacy|tf_keras).*\]$")
KEEP_LEGACY: Mapping[str, Sequence[str]] = {
    "training/test_keras_patches.py": ("every_replaced_function",),
    "training/test_plain_fit.py": ALL,
    "training/test_recipes.py": ALL,
    "training/test_start.py": ALL,
}

LEFT_OUT: Mapping[str, Sequence[str]] = {
    # Runs of whole jobs. Each takes 10 to 40 s.
    "e2e/test_claims.py": ALL,
    "e2e/test_data_order.py": ALL,
    "e2e/test_data_workers.py": ALL,
    "e2e/test_datasets.py": ALL,
    "e2e/test_dead_ray.py": ("embedded_ray_that_dies", "ray_stop", "script_that_ray_ends", "sigterm_to_all"),
    "e2e/test_detached.py": (
        "function_of_a_script",
        "what_the_cluster",
        "second_ctrl_c",
        "controller_killed",
    ),
    "e2e/test_embedding_jobs.py": ALL,
    "e2e/test_every_command.py": ("command", "list_has", "server_takes", "failed_run", "live_run"),
    "e2e/test_environment.py": ALL,
    "e2e/test_extra_roles.py": ALL,
    "e2e/test_failures.py": (
        *("crash_names", "run_of_that_name", "run_waits", "same_command", "stop_on"),
        *("run_is_retried", "task_whose_gpus"),
    ),
    "e2e/test_fence.py": ALL,
    "e2e/test_hosts.py": ("run_over_two", "killed_raylet", "storage_that_another"),
    "e2e/test_inference.py": ("predictions_that", "records_are", "csv_is", "images_are", "exported_formats"),
    "e2e/test_input_data.py": ALL,
    "e2e/test_jobs.py": ("auto_falls", "cifar_data", "folder_of"),
    "e2e/test_memory.py": ALL,
    "e2e/test_output.py": ALL,
    "e2e/test_notebooks.py": ALL,
    "e2e/test_page.py": ALL,
    "e2e/test_parameter_server.py": ("mistake_in", "every_role", "killed_worker"),
    "e2e/test_parameter_server_jobs.py": ALL,
    "e2e/test_profile.py": ALL,
    "e2e/test_python_api.py": ("run_works", "run_that_ends", "runs_in_threads"),
    "e2e/test_resources.py": ("embedded_ray",),
    "e2e/test_scale.py": ALL,
    "e2e/test_scripts.py": ("killed", "script_gives"),
    "e2e/test_search.py": ALL,
    "e2e/test_secrets.py": ALL,
    "e2e/test_stacks.py": ALL,
    "e2e/test_storage.py": ("outage_that", "host_that", "full_disk", "run_goes_on"),
    "e2e/test_tensorboard.py": ALL,
    "e2e/test_terminal.py": ALL,
    "e2e/test_up.py": ("ray_that_stays",),
    "e2e/test_values.py": ALL,
    "e2e/test_survival.py": (
        "killed_task",
        "worker_that_hangs",
        "code_that_hangs",
        "task_that_has",
        "run_grows",
    ),
    # The controller in an actor, killed at one moment after another.
    "runs/test_detached.py": (
        *("controller_killed", "run_outlives", "submitter_ended", "large_function", "other_versions"),
        *("refusal_of", "name_that", "function_that", "controller_brought_back", "controller_lives"),
    ),
    # The same on S3 as in a folder; one test of each command stays.
    "cli/commands/test_delete.py": (
        *("run_that_goes_on_is_refused_and_nothing_is_deleted[s3", "mistake_deletes_nothing[s3"),
        *("older_than_takes_what_has_ended_and_names_what_it_keeps[s3", "person_is_asked[s3"),
        *("without_a_terminal_yes_has_to_be_given[s3", "run_that_is_resumed_while_it_is_asked_stays[s3"),
        "removal_that_was_cut_off_can_be_repeated[s3",
    ),
    "cli/commands/test_kept_runs.py": (
        *("describe_shows_options_checkpoints_and_sizes[s3", "wait_ends_with_the_exit_code_of_the_run[s3"),
        *("damaged_checkpoint_is_passed_over_and_named[s3", "download_that_cannot_be_is_exit_2[s3"),
        *("run_without_an_export_or_checkpoint_says_so[s3", "command_takes_a_run_of_every_state[s3-"),
    ),
    "cli/commands/test_list.py": ("list_shows_what_is_asked_for[s3",),
    "cli/commands/test_logs.py": ("follower_goes_on_into_the_next_attempt_until_the_end[s3",),
    "cli/commands/test_status.py": ("watch_shows_progress_until_the_end[s3",),
    # Ray heads and hosts that are started for a test or two.
    "runtime/doctor/test_survey.py": ("suspected_host_that_is_slow",),
    "runtime/cluster/test_connection.py": (
        *("token_in", "token_is", "client_address", "wrong_or_missing_token_is_one_sentence_in_time[missing"),
        *(
            "wrong_or_missing_token_is_one_sentence_in_time[wrong-client",
            "server_that",
            "inside_a_ray_worker",
        ),
        *("token_mode", "dead_address", "no_address_takes", "embedded_ray_has"),
    ),
    "runtime/cluster/test_datasets.py": ("split_of", "stop_leaves", "dataset_of_files", "each_worker"),
    "runtime/group/test_dead_ray.py": ALL,
    "runtime/group/test_extra_roles.py": ("stopped_group_leaves_no_command[command", "role_whose_actor"),
    "runtime/group/test_group.py": (
        *(
            f"dead_process_is_lost_and_its_log_is_salvaged[{how}"
            for how in ("exit", "native", "segf", "abort")
        ),
        *("dead_process_is_lost_and_its_log_is_salvaged[sigterm", "stop_ends_tasks_that_hang[hang]"),
        *("process_killed_from", "group_runs_inside", "worker_of_parameter", "stacks_are_dumped_into"),
    ),
    "runtime/group/test_kept_agents.py": ("agent_that_dies", "what_is_imported"),
    "runtime/group/test_other_hosts.py": (
        *("task_is_moved", "other_version", "host_with", "host_without", "elastic", "task_of_another"),
        *("stop_while", "worker_whose_node", "full_scratch", "TestBesideAnEqualNode"),
        *("task_on_a_node_that_is_drained", "TestBesideALargeNode", "node_that_dies"),
    ),
    "runtime/group/test_replacement.py": (
        *("stop_during", "stop_that", "replacement_that", "port_that", "worker_that_dies", "evaluator_comes"),
    ),
    "runtime/group/test_standbys.py": ALL,
    "runtime/host/test_sweeping.py": ("embedded_ray",),
    # Real TensorFlow on several workers or devices.
    "jobs/test_gallery.py": (
        *("killed_run", "parameter_server_loop", "only_asynchronous", "each_variant", "data_that"),
        *("mnist_trains", "batch_size", "baseline", "tpu_falls", "device_choice_agrees"),
        *("scope_makes", "custom_loop", "replicas_share", "all_reduce", "input_pipeline", "monitor_shows"),
        "without_data_the",
    ),
    "tables/test_orders.py": ("calls_whose_order",),
    "training/test_accumulation.py": (
        *("update_of_several_batches", "resumed", "train_step", "half_precision", "gradients_are"),
    ),
    "training/test_advice.py": ("programs_that",),
    "training/test_communication.py": (
        *(
            "gradients_are_packed",
            "cross_device",
            "collective_that",
            "compressed_gradients_are",
            "options_are",
        ),
    ),
    "training/test_evaluator.py": ALL,
    "training/test_given_data.py": ("run_that_was", "workers_with", "arrays_are", "TestAsOnOneDevice"),
    "training/test_plain_pipelines.py": (
        *("rows_of_the_workers_make_up_each_global_batch[3", "map_that", "run_that", "training_equals"),
    ),
    "training/test_scripts.py": ("strategy_that", "options_of", "guides_parameter_server", "guide_runs"),
    "training/test_checkpoints.py": (
        *(
            "chief_killed",
            "what_cannot",
            "command_to_one",
            "early_stopping",
            "variables_that",
            "resumed_run_draws",
        ),
        *("saves_every_second", "run_that_dies", "generators", "worker_that", "training_goes_on"),
    ),
    "training/test_context.py": (
        *("second_fit", "callbacks_resume", "train_steps", "function_of_an_input", "learning_rate"),
        *("resumed_fit", "loop_whose_checkpoints", "trainings_that_share"),
    ),
    "training/test_determinism.py": ("two_runs",),
    "training/test_equality.py": ALL,
    "training/test_equal_state.py": (*("workers_with", "equal_workers"),),
    "training/test_export.py": ALL,
    "training/test_fit_arguments.py": (
        *("TestAsOnOneDevice", "run_that_began", "prediction_is", "workers_take", "weights_are"),
        *("steps_beyond", "class_without"),
    ),
    "training/test_keras_patches.py": (
        *("TestUsersOwnFit", "TestStockKeras3", "callback_that", "gradients_are_clipped"),
        *("what_cannot_work", "stock_tf_keras", "workers_agree"),
    ),
    "training/test_lazy_imports.py": (
        "task_imports_no_more_than_it_needs_and_has_the_rest_on_demand[s",  # all but a task that trains
    ),
    "training/test_layer_notes.py": ("layers_that_draw",),
    "training/test_loss_rules.py": ALL,
    "training/test_metric_check.py": (*("metric_that_is", "metric_that_cannot"),),
    "training/test_non_finite.py": (*("value_that", "stop_on", "checkpoint_and_export"),),
    "training/test_norms.py": ("mean_loss", "notes_tell"),
    "training/test_own_strategies.py": ALL,
    "training/test_parameter_server.py": (
        *("a_resumed_run", "shards_of", "evaluator", "custom_loop", "command_to_save", "batch_hooks"),
        *("resumes_inside", "killed_worker"),
    ),
    "training/test_plain_fit.py": ("plain_fit_is_counted", "plain_fit_of"),
    "training/test_plain_keras.py": ALL,
    "training/test_ps_messages.py": ("one_worker_trains", "stale_weights", "messages_of"),
    "training/test_ps_staleness.py": (
        *("a_resumed_run", "several_workers", "notes_say", "loop_of_the_users_own"),
        *(
            f"one_worker_trains_what_stale_gradients_train[{case}"
            for case in ("fit-dense sgd", "fit-dense adam-unrolled", "fit-embedding", "train_steps")
        ),
    ),
    "training/test_recipes.py": (
        "training_is_that_of_one_device[parquet",
        *("steps_of", "evaluator", "workers_with", "training_that", "with_deterministic", "workers_that_map"),
        *("training_is_that_of_one_device[arrays-mirrored", "workers_of_parameter_servers_share"),
    ),
    "training/test_shown_values.py": (
        "sums_and",
        "values_that",
        "metric_in",
        "what_a_step",
        "parameter_servers",
    ),
    "training/test_sparse_gradients.py": ALL,
    "training/test_train_data.py": (
        "data_without",
        "epoch_lasts",
        "fewer_files",
        "files_of",
        "data_that_the",
    ),
    "training/test_unusual_batches.py": ALL,
    "programs/test_notes.py": ("what_cannot",),
    "training/test_virtual_variables.py": ("optimizers_update",),
    "training/test_worker_callbacks.py": ("TestTwoWorkers",),
    "training/test_worker_order.py": ("workers_that", "workers_whose", "comparing_a_generator"),
    # What a page might come to say that is wrong, and all snippets in a process with TensorFlow.
    "cli/test_guide_snippets.py": ALL,
    "storage/test_expiry.py": ("run_deletes",),
    # A virtual environment, and all tests collected by one worker after another.
    "test_benchmarks.py": ("what_a_script",),
    "test_groups.py": ("few_files_are_run_whatever_the_number_of_workers[cli",),
    # A type checker that reads all of raydist.
    "test_signatures.py": ("type_checker",),
    # Data and storage under every fault.
    "storage/test_faulty_store.py": (
        "outage_that",
        "store_that",
        "writers_of",
        "every_verb_survives_faults[S",
    ),
    "storage/test_filesystem.py": ("google",),
    "storage/test_proof.py": ("outage_at",),
    "data/sources/test_faulty_store.py": ("store_that", "requests_that_fail_for_a_moment_are_made_again[im"),
    "data/test_memory.py": ALL,
}


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which cases a run of pytest takes.

    Attributes:
      lowest: The level of a case is at least this one.
      highest: And at most this one.
      shard: Of the highest level only the first's part of so many parts; None takes all.
    """

    lowest: Level = Level.DEFAULT
    highest: Level = Level.DEFAULT
    shard: tuple[int, int] | None = None

    def takes(self, case: Case) -> bool:
        level = level_of(case)
        if self.shard is not None and level is self.highest:
            number, num_shards = self.shard
            if shard_of(case, num_shards, level=level) != number:
                return False
        return self.lowest <= level <= self.highest


def read_shard(text: str) -> tuple[int, int]:
    """Returns K and N of `K/N`; raises ValueError unless 1 <= K <= N."""
    match = re.fullmatch(r"([0-9]+)/([0-9]+)", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise ValueError(f"{text!r} is not a shard; write K/N with K from 1 to N, such as 2/10")
    return int(match[1]), int(match[2])


def sentence_of(cases: Sequence[Case], choice: Choice) -> str:
    """Returns what is said of the cases of higher levels that are not taken; "" if there are none."""
    left = [case for case in cases if level_of(case) >= choice.lowest and not choice.takes(case)]
    if not left:
        return ""
    num_slow = sum(level_of(case) is Level.RUNSLOW for case in left)
    added = f"--runslow adds {num_slow} of them, " if num_slow else ""
    tests = "test" if len(left) == 1 else "tests"
    return f"{len(left)} {tests} of higher levels deselected: {added}--exhaustive all"


def level_of(case: Case) -> Level:
    """Returns the lowest level that runs a case."""
    if not (case.is_marked or is_left_out(case)):
        return Level.DEFAULT
    return Level.EXHAUSTIVE if is_exhaustive(case) else Level.RUNSLOW


def is_left_out(case: Case) -> bool:
    """Returns whether the default run leaves a case out, whatever its marks."""
    return _is_legacy(case) or _is_named(case, LEFT_OUT)


def is_exhaustive(case: Case) -> bool:
    """Returns whether only `--exhaustive` runs a case, if it is a slow one."""
    patterns = EXHAUSTIVE.get(case.path, ())
    return _is_legacy(case) or any(re.search(pattern, case.name) for pattern in patterns)


def shard_of(case: Case, num_shards: int, *, level: Level = Level.EXHAUSTIVE) -> int:
    """Returns the shard of a case, from 1 on.

    Cases of one launch mostly share it: with `--exhaustive` as their parameters do, else as their file does.
    """
    parameters = case.name.partition("[")[2] or case.name
    launch = f"{case.path} {parameters}" if level is Level.EXHAUSTIVE else case.path
    return zlib.crc32(launch.encode()) % num_shards + 1


def _is_legacy(case: Case) -> bool:
    is_of_training = case.path.startswith("training/") and LEGACY.search(case.name) is not None
    return is_of_training and not _is_named(case, KEEP_LEGACY)


def _is_named(case: Case, beginnings: Mapping[str, Sequence[str]]) -> bool:
    """Returns whether the beginning of the name of a case is listed for its file."""
    name = case.name.removeprefix("test_")
    return any(name.startswith(beginning) for beginning in beginnings.get(case.path, ()))
