"""What a search asks of Tune, where nothing is started."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest

from raydist.errors import ClusterError, MistakeError, RaydistError, StorageError
from raydist.planning.inventory import Host, Inventory
from raydist.planning.plan import Plan
from raydist.runtime.cluster.placement import group_of
from raydist.spec.best import Direction
from raydist.spec.job import EntryPoint, JobSpec, WorkerRange
from raydist.spec.params import ParamTexts
from raydist.spec.secrecy import dump_plain_json
from raydist.storage.claims import Claim, ClaimStore
from raydist.storage.filesystem import Storage
from raydist.storage.run_record import RunRecordStore
from raydist.storage.run_storage import open_run
from raydist.tune import search
from raydist.tune.run_trainable import SEED, has_fixed_room, run_name, wait_until_free
from raydist.tune.search import check_parallel, error_of
from raydist.tune.space import Space, parse_space
from raydist.tune.trainable import trainable
from raydist.tune.tuner import Diverged, Search, Variants, param_space
from tests.planning.plans import LAPTOP, cluster, plan
from tests.support.records import make_record

PARAMS = {"rate": 1e-3, "units": 64}


def two_workers(inventory: Inventory, **fields: Any) -> Plan:
    return plan(inventory, workers=WorkerRange(minimum=2, maximum=2), **fields)


def test_ranges_are_drawn_from_and_both_ends_of_whole_numbers_may_come() -> None:
    space = param_space(
        parse_space(ParamTexts.parse(["rate=log:1e-4..1e-1", "units=1..3"]), PARAMS), seeds=0, first_seed=0
    )
    rates = [space["rate"].sample() for _ in range(200)]
    assert all(1e-4 <= rate <= 1e-1 for rate in rates)
    # Of a range without a logarithm a tenth would be below a tenth of its end.
    assert sum(rate < 1e-2 for rate in rates) > 80
    assert {space["units"].sample() for _ in range(200)} == {1, 2, 3}


def test_values_alone_make_a_grid_and_beside_a_range_are_drawn_from() -> None:
    grid = param_space(parse_space(ParamTexts.parse(["units=8,16"]), PARAMS), seeds=2, first_seed=5)
    assert grid == {"units": {"grid_search": [8, 16]}, SEED: {"grid_search": [5, 6]}}
    drawn = param_space(
        parse_space(ParamTexts.parse(["units=8,16", "rate=0..1"]), PARAMS), seeds=0, first_seed=0
    )
    assert {drawn["units"].sample() for _ in range(100)} == {8, 16}


def test_as_many_trials_go_at_a_time_as_have_room() -> None:
    found = two_workers(cluster((8, 0)))
    assert check_parallel(found, None) == 4
    assert check_parallel(found, 3) == 3
    with pytest.raises(ClusterError) as caught:
        check_parallel(found, 5)
    assert str(caught.value) == (
        "parallel is 5, but Ray at h0:6379 has room for 4 trials at a time, each with 2 workers "
        "(1 CPU each); use --parallel 4"
    )


def test_embedded_ray_may_have_more_logical_cpus_than_cores_but_only_if_asked() -> None:
    found = two_workers(LAPTOP)
    cores = LAPTOP.hosts[0].num_cpus
    assert check_parallel(found, None) == max(1, cores // 2)
    assert check_parallel(found, int(cores) + 1) == cores + 1


def test_trial_reserves_a_bundle_for_each_task_unless_their_number_may_change() -> None:
    found = two_workers(cluster((8, 0)), resources={"worker": {"cpus": 2.0}}, evaluator=True)
    group = group_of(found)
    assert sorted(map(sorted, map(dict.items, group.bundles))) == [
        [("CPU", 1.0)],
        [("CPU", 2.0)],
        [("CPU", 2.0)],
    ]
    assert group.strategy == "PACK"
    assert has_fixed_room(found)
    assert not has_fixed_room(plan(cluster((8, 0)), workers=WorkerRange(minimum=1, maximum=2)))
    large = Inventory(hosts=(Host(name="h0", num_cpus=8, memory_bytes=1 << 33),), source="Ray at h0:6379")
    assert not has_fixed_room(two_workers(large, memory_retry=1.5, resources={"worker": {"memory": 1 << 30}}))


def test_search_of_the_same_job_with_another_config_is_another_one() -> None:
    def settings(**fields: Any) -> dict[str, Any]:
        job = JobSpec(name="r", entry_point=EntryPoint(function="train", file="job.py"), **fields)
        packed: Any = SimpleNamespace(request=SimpleNamespace(job=job))
        return Search(
            packed=packed,
            space=parse_space(ParamTexts.parse(["rate=0..1"]), PARAMS),
            num=3,
            metric="loss",
            direction=Direction.LOWEST,
            scheduler="none",
            grace=1,
            parallel=None,
            seeds=0,
            study=None,
            is_resumed=True,
        ).settings

    plain = settings(params={"units": 64})
    assert plain == settings(params={"units": 64}, storage="elsewhere", timeout=60.0)
    assert plain != settings(params={"units": 32})
    assert plain != settings(params={"units": 64}, workers=WorkerRange(minimum=2, maximum=2))
    assert "hush" not in dump_plain_json(settings(params={"api_key": "hush"}))  # as the study's record is


@pytest.mark.parametrize(
    ("study", "is_search", "name"),
    [
        (None, False, "1a2b3_00004"),
        ("rates", False, "rates-1a2b3_00004"),  # another experiment of that study has other runs
        ("rates", True, "rates-00004"),
    ],
)
def test_run_is_named_by_the_trial(study: str | None, is_search: bool, name: str) -> None:
    assert run_name("1a2b3_00004", study=study, is_search=is_search) == name


DRIVER = """
import json
from raydist.storage.claims import this_process
print(json.dumps(this_process()), flush=True)
input()
"""


def test_trial_waits_for_the_process_that_had_it_before(tmp_path: Path) -> None:
    run = open_run(str(tmp_path), run="s-00001")
    wait_until_free(run)  # nobody ever had it
    before = subprocess.Popen(
        [sys.executable, "-c", DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with before:
        holder = json.loads(before.stdout.readline())
        assert ClaimStore(run).add(Claim(number=0, id="a", holder=holder, at_s=time.time()))
        wait_until_free(run, timeout_s=0.1)  # what follows tells who has it
        assert before.poll() is None
        waiting = threading.Thread(target=wait_until_free, args=[run])
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive()
        before.kill()
        before.wait()
        waiting.join(20)
        assert not waiting.is_alive()


@pytest.mark.parametrize(
    ("analysis", "stored", "best"),
    [
        ({"min": 0.3, "max": 0.9, "avg": 0.6}, [], 0.3),
        ({"min": math.nan, "max": math.nan, "avg": math.nan}, [0.5, 0.3, math.nan], 0.3),
        ({"min": 0.9, "max": 0.9, "avg": math.nan}, [0.3, math.nan, 0.9], 0.3),
        ({"min": math.nan, "max": math.nan, "avg": math.nan}, [math.nan], None),
    ],
    ids=["numbers", "nan at last", "nan in between", "nan alone"],
)
def test_nan_is_never_the_best_value_and_hides_none(
    monkeypatch: pytest.MonkeyPatch, analysis: dict[str, float], stored: list[float], best: float | None
) -> None:
    monkeypatch.setattr(search, "stored_values", lambda run, metric: stored)
    asked = SimpleNamespace(metric="loss", direction=Direction.LOWEST, is_resumed=False)
    of: Any = search._Searching._best_of
    found = of(SimpleNamespace(_search=asked), SimpleNamespace(metric_analysis={"loss": analysis}), None)
    assert found == best or (best is None and math.isnan(found))


@pytest.mark.parametrize(
    ("value", "iteration", "is_ended"),
    [(math.nan, 1, False), (math.nan, 2, True), (math.inf, 2, False), (0.5, 2, False), (None, 2, False)],
)
def test_asha_ends_a_trial_whose_metric_is_nan_after_its_grace(
    value: float | None, iteration: int, is_ended: bool
) -> None:
    told = {} if value is None else {"loss": value}
    assert Diverged("loss", grace=2)("t", {**told, "training_iteration": iteration}) is is_ended


def test_as_many_trials_go_at_a_time_as_the_command_that_continues_asks_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored = cloudpickle.dumps(Variants(max_concurrent=7))
    monkeypatch.setattr(Variants, "at_once", 2)
    restored = cloudpickle.loads(stored)
    restored.max_concurrent = 7
    assert restored.max_concurrent == 2


def test_metric_that_another_trial_reports_is_known() -> None:
    asked: Any = SimpleNamespace(num_trials=2, metric="val_loss")
    state = search._Searching(asked, study="s", store=None, storage=None, show=print)  # type: ignore[arg-type]
    assert not state._is_known("val_loss")
    trials: Any = [SimpleNamespace(metric_analysis={}), SimpleNamespace(metric_analysis={"val_loss": {}})]
    state.trials = trials
    assert state._is_known("val_loss")


def test_trials_that_an_interrupt_stops_are_not_stopped_early(tmp_path: Path) -> None:
    asked: Any = SimpleNamespace(
        num_trials=2, space=Space(dimensions={}, fixed={}), metric=None, direction=None
    )
    storage: Any = Storage.open(str(tmp_path))
    state = search._Searching(asked, study="s", store=None, storage=storage, show=print)  # type: ignore[arg-type]
    trials: Any = [
        SimpleNamespace(trial_id=f"1_{number}", status=status, last_result={}, config={})
        for number, status in enumerate(("TERMINATED", "RUNNING"))
    ]
    for one in trials:
        run = open_run(str(tmp_path), run=run_name(one.trial_id, study="s", is_search=True))
        RunRecordStore(run).replace(make_record(run, state="CANCELLED"))
    state.trials = trials
    with state.current():
        signal.raise_signal(signal.SIGINT)
        trials[1].status = "TERMINATED"  # as Tune says of all that it has stopped
        assert [state.row_of(one).stopped_early for one in trials] == [True, False]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_that_comes_before_tune_begins_ends_the_search_at_its_beginning(number: int) -> None:
    told: list[int] = []
    before = {each: signal.getsignal(each) for each in (number, signal.SIGUSR1)}
    asked: Any = SimpleNamespace(num_trials=1)
    state = search._Searching(asked, study="s", store=None, storage=None, show=print)  # type: ignore[arg-type]
    with state.current():
        assert not state.is_done
        signal.raise_signal(number)
        assert state.is_interrupted
        assert state.is_done
        signal.signal(signal.SIGUSR1, lambda number, frame: told.append(number))  # as Tune does
        search._Watch().setup()
        assert told == [signal.SIGUSR1]
        with pytest.raises(KeyboardInterrupt):  # somebody who does not want to wait
            signal.raise_signal(number)
    assert {each: signal.getsignal(each) for each in before} == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "mine"}, "each trial's run is named by the trial's id"),
        ({"resume": "auto"}, "a trial resumes by itself"),
        ({"detach": True}, "a trial's run ends with the trial"),
    ],
)
def test_option_that_is_none_of_a_trial_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(MistakeError, match=words):
        trainable("jobs/digits.py", **options)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            'Traceback:\n  File "x.py", line 3\nraydist.errors.StorageError: no space left at x: free some',
            StorageError("no space left at x: free some"),
        ),
        ("", ClusterError("the process of the trial in Ray has died")),
        (
            "ray.exceptions.ActorDiedError: it died",
            ClusterError("the process of the trial in Ray has died: ray.exceptions.ActorDiedError: it died"),
        ),
    ],
)
def test_error_of_a_trial_is_what_its_traceback_ends_with(text: str, error: RaydistError) -> None:
    found = error_of(text)
    assert (type(found), str(found)) == (type(error), str(error))
