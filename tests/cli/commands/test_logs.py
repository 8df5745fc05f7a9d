from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest

from raydist.spec.log_noise import NoiseFilter
from raydist.spec.tasks import TaskId
from raydist.storage.log_times import encode_marks
from raydist.storage.run_record import RunRecordStore
from raydist.storage.run_storage import RunStorage, open_run
from tests.cli.conftest import ON_EACH_STORAGE, Run
from tests.support.records import make_record

INFO = "I0000 00:00:1795383984.984572     156 port.cc:153] oneDNN custom operations are on."
NO_LIBRARIES = (
    "W0000 00:00:1795383987.268059     156 gpu_device.cc:2365] Cannot dlopen some GPU libraries. Please make"
)
START_UP = [
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    INFO,
    "I0000 00:00:1795383984.985554     156 cudart_stub.cc:31] Could not find cuda drivers on your machine",
    "To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow with the flags.",
    "E0000 00:00:1795383987.268057     156 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error",
    NO_LIBRARIES,
    "2026-11-21 09:30:12.123456: I tensorflow/core/util/port.cc:153] oneDNN custom operations are on.",
    "W0000 00:00:1795383988.183129     505 local_rendezvous.cc:412] Local rendezvous is aborting "
    "with status: FAILED_PRECONDITION: Input dataset was expected to contain an infinite number of elements",
    "\t [[{{node MultiDeviceIteratorGetNextFromShard}}]]",
    "\t [[{{function_node while_body_362}}{{node while/Next}}]] [type.googleapis.com/tensorflow]",
]
KEPT = [
    "Epoch 1/3",
    "I1121 09:30:12.345678 140 main.py:7] a message of the user's absl logger",
    "E0000 00:00:1795383988.183129     505 coordination_service.cc:9] worker 1 was lost",
    "Traceback (most recent call last):",
    "\t [[{{node of_an_error_of_the_user}}]]",
]


def add_log(
    storage: RunStorage, name: str, *lines: tuple[float, str], attempt: int = 0, seq: int = 0
) -> None:
    task, marks, size = TaskId.parse(name), [], 0
    for at_s, line in lines:
        size += len(line.encode()) + 1
        marks.append((at_s, size))
    storage.write_bytes(storage.log_times(task, attempt=attempt, seq=seq), encode_marks(marks))
    text = "".join(f"{line}\n" for _, line in lines)
    storage.write_text(storage.log_segment(task, attempt=attempt, seq=seq), text)


@pytest.fixture
def run(runs_uri: str) -> RunStorage:
    """A live run of two workers with five lines, of which the first one is TensorFlow's."""
    storage = open_run(runs_uri, run="digits-1")
    RunRecordStore(storage).replace(make_record(storage, state="RUNNING"))
    now_s = time.time()
    add_log(storage, "worker/0", (now_s - 60, INFO), (now_s - 50, "zero"), (now_s - 30, "two"))
    add_log(storage, "worker/1", (now_s - 40, "one"), (now_s - 20, "three ✓"))
    return storage


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        pytest.param(
            [], ["[worker/0] zero", "[worker/1] one", "[worker/0] two", "[worker/1] three ✓"], id="merged"
        ),
        pytest.param(["--tail", "2"], ["[worker/0] two", "[worker/1] three ✓"], id="tail"),
        pytest.param(["--tail", "0"], [], id="tail-of-nothing"),
        pytest.param(
            ["--since", "45s"], ["[worker/1] one", "[worker/0] two", "[worker/1] three ✓"], id="since"
        ),
        pytest.param(["--since", "45s", "--tail", "1"], ["[worker/1] three ✓"], id="since-and-tail"),
        pytest.param(["--task", "worker/0"], ["zero", "two"], id="task"),
        pytest.param(["--task", "worker/0", "--all"], [INFO, "zero", "two"], id="all"),
        pytest.param(
            ["--all", "--tail", "4"],
            ["[worker/0] zero", "[worker/1] one", "[worker/0] two", "[worker/1] three ✓"],
            id="all-tail",
        ),
    ],
)
def test_logs_show_what_is_asked_for(
    raydist: Run, run: RunStorage, arguments: list[str], lines: list[str]
) -> None:
    code, out, _ = raydist("logs", "digits", "--storage", run.uri(), *arguments)
    assert (code, out.splitlines()) == (0, lines)


def test_time_of_each_line_is_printed(raydist: Run, run: RunStorage) -> None:
    out = raydist("logs", "@latest", "--storage", run.uri(), "--time", "--tail", "1")[1]
    date, clock, prefix, *text = out.split()
    assert (len(date), len(clock), prefix, text) == (10, 8, "[worker/1]", ["three", "✓"])


@pytest.mark.parametrize("since", ["-5", "-5m"])
def test_negative_time_is_exit_2(raydist: Run, run: RunStorage, since: str) -> None:
    code, _, err = raydist("logs", "digits-1", "--storage", run.uri(), "--since", since)
    assert code == 2
    assert f"--since is '{since}'; write how long ago, such as 5m, or a time such as 2026" in err


def test_time_that_is_none_is_exit_2(raydist: Run, run: RunStorage) -> None:
    code, _, err = raydist("logs", "digits-1", "--storage", run.uri(), "--since", "yesterday")
    assert code == 2
    assert "--since is 'yesterday'; write seconds, or 90s, 5m, 2h, or a time such as 2026-11-21T09:30" in err


@ON_EACH_STORAGE
def test_json_has_each_text_whole_and_the_tail_where_it_is_asked_for(raydist: Run, run: RunStorage) -> None:
    arguments = ("logs", "digits-1", "--storage", run.uri(), "--json")
    assert json.loads(raydist(*arguments)[1])["logs"] == [
        {"attempt": 0, "task": "worker/0", "text": f"{INFO}\nzero\ntwo\n"},
        {"attempt": 0, "task": "worker/1", "text": "one\nthree ✓\n"},
    ]
    assert [each["text"] for each in json.loads(raydist(*arguments, "--tail", "1")[1])["logs"]] == [
        "",
        "three ✓\n",
    ]


def test_follower_goes_on_into_the_next_attempt_until_the_end(raydist: Run, run: RunStorage) -> None:
    def go_on() -> None:
        time.sleep(1.5)
        add_log(run, "worker/0", (time.time(), "four"), seq=1)
        time.sleep(1.5)
        add_log(run, "worker/0", (time.time(), "again"), attempt=1)
        RunRecordStore(run).replace(make_record(run, state="FAILED"))

    thread = threading.Thread(target=go_on)
    thread.start()
    out = raydist("logs", "digits-1", "--storage", run.uri(), "-f", "--tail", "1")[1]
    thread.join()
    assert out.splitlines() == [
        "[worker/1] three ✓",
        "[worker/0] four",
        "==> attempt 1 <==",
        "[worker/0] again",
    ]


def test_damaged_times_cost_only_the_order(raydist: Run, run: RunStorage) -> None:
    run.write_bytes(run.log_times(TaskId.parse("worker/1"), attempt=0, seq=0), b"{")
    out = raydist("logs", "digits-1", "--storage", run.uri())[1]
    assert sorted(out.splitlines()) == [
        "[worker/0] two",
        "[worker/0] zero",
        "[worker/1] one",
        "[worker/1] three ✓",
    ]


def test_log_of_start_up_alone_says_that_it_is_left_out(raydist: Run, tmp_path: Any) -> None:
    storage = open_run(str(tmp_path), run="quiet")
    RunRecordStore(storage).replace(make_record(storage, state="RUNNING"))
    add_log(storage, "worker/0", (1.0, INFO))
    code, out, err = raydist("logs", "quiet", "--storage", str(tmp_path))
    assert (code, out, err) == (0, "", "TensorFlow's start-up messages alone (1); --all shows them\n")


def test_start_up_messages_are_told_from_what_matters() -> None:
    noise = NoiseFilter(has_gpus=False)
    assert [line for line in [*START_UP, *KEPT] if noise.keeps(line)] == KEPT
    assert noise.num_left_out == len(START_UP)


def test_why_tensorflow_sees_no_gpus_is_shown_for_tasks_with_gpus() -> None:
    noise = NoiseFilter(has_gpus=True)
    shown = [line for line in START_UP if noise.keeps(line)]
    assert [line.partition("] ")[2].partition(".")[0] for line in shown] == [
        "Could not find cuda drivers on your machine",
        "failed call to cuInit: INTERNAL: CUDA error",
        "Cannot dlopen some GPU libraries",
    ]


@pytest.mark.parametrize("options", [[], ["--tail", "9"]], ids=["all-lines", "tail"])
def test_plan_says_which_tasks_have_gpus(raydist: Run, tmp_path: Any, options: list[str]) -> None:
    storage = open_run(str(tmp_path), run="gpus")
    roles = [{"task_type": "chief", "gpus": 0}, {"task_type": "worker", "gpus": 1}]
    RunRecordStore(storage).replace(make_record(storage, state="FAILED", plan={"roles": roles}))
    for task in ("chief/0", "worker/0"):
        add_log(storage, task, (1.0, NO_LIBRARIES))
    code, out, _ = raydist("logs", "gpus", "--storage", str(tmp_path), *options)
    assert (code, out) == (0, f"[worker/0] {NO_LIBRARIES}\n")


def test_damaged_record_hides_nothing_about_gpus(raydist: Run, tmp_path: Any) -> None:
    storage = open_run(str(tmp_path), run="gpus")
    storage.write_bytes(storage.record, b"{")
    add_log(storage, "worker/0", (1.0, NO_LIBRARIES))
    assert NO_LIBRARIES in raydist("logs", "gpus", "--storage", str(tmp_path))[1]
