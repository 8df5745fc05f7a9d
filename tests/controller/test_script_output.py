"""What is shown of the lines that the tasks of a script print."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from raydist.controller import script_output
from raydist.controller.script_output import (
    CHIEF_WAIT_S,
    LEFT_OUT_EVERY_S,
    MOST_WAITING,
    PASSED_WAIT_S,
    ScriptOutput,
    match_key,
)
from raydist.outcome.printed import Printed, PrintedLine
from raydist.planning.plan import Plan
from raydist.spec.job import RunOn, Strategy
from tests.support.fakes import make_plan, task

FIRST, SECOND, THIRD = (task(f"worker/{index}") for index in range(3))
LOGS = "raydist logs r"
ROLES = ("chief", "worker", "ps", "data-worker")
START_UP = "E0000 00:00:1795383987.268057     156 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA"
ABORT = [
    "E0000 00:00:1795992743.289606   21986 ring_alg.cc:291] Aborting RingGather with UNKNOWN: Collective ops "
    "is aborted by: worker/1: RuntimeError: worker 1 is bad",
    "The error could be from a previous operation. Restart your program to reset.",
    "Additional GRPC error information from remote target /job:worker/replica:0/task:1",
    ':UNKNOWN:Error received from peer  {grpc_status:2, grpc_message:"Collective ops is aborted"}',
]


def output_of(workers: int = 2) -> ScriptOutput:
    return ScriptOutput([FIRST, SECOND, THIRD][:workers], logs_command=LOGS)


def printed(worker: int, *lines: str, left_out: int = 0, is_redrawn: bool = False) -> Printed:
    made = tuple(PrintedLine(text=line, is_redrawn=is_redrawn) for line in lines)
    return Printed(task=task(f"worker/{worker}"), lines=made, num_left_out=left_out)


def shown(output: ScriptOutput, now_s: float = 0.0, *, is_last: bool = False) -> list[str]:
    """Returns the lines as a person sees them."""
    return [
        f"[{' '.join(map(str, line.tasks))}] {line.text}" if line.tasks else line.text
        for line in output.take(now_s=now_s, is_last=is_last)
    ]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param([["a", "b"]], ["a", "b"], id="one worker"),
        pytest.param([["a", "b"], ["a", "b"]], ["a", "b"], id="equal"),
        pytest.param([["a", "b"], ["b", "a"]], ["a", "b"], id="another order"),
        pytest.param([["a"] * 3, ["a"] * 3], ["a"] * 3, id="as often as each prints it"),
        pytest.param([["a"] * 3, ["a"]], ["a"] * 3, id="the chief alone"),
        pytest.param([["a"], ["a"] * 3], ["a", *["[worker/1] a"] * 2], id="once more"),
        pytest.param(
            [["I am 0", "end"], ["I am 1", "end"]], ["I am 0", "end", "[worker/1] I am 1"], id="own"
        ),
        pytest.param(
            [["a0", "b0"], ["a1", "b1"]], ["a0", "b0", "[worker/1] a1", "[worker/1] b1"], id="nothing but own"
        ),
        pytest.param(
            [["begin", "end"], ["begin", "x", "end"]], ["begin", "end", "[worker/1] x"], id="between"
        ),
        pytest.param([[], ["a"], ["a"]], ["[worker/1 worker/2] a"], id="all but the chief"),
        pytest.param([["a"], [], ["a"]], ["a"], id="all but one"),
        pytest.param(
            [["a"], ["a", "b", "b"], ["b"]], ["a", "[worker/1 worker/2] b", "[worker/1] b"], id="two"
        ),
        pytest.param([["a  "], ["a"]], ["a"], id="blanks at the end"),
        pytest.param([["", "a"], ["", "a"]], ["", "a"], id="empty lines"),
        pytest.param([["\x1b[1mbold\x1b[0m\x1b]0;title\x07"], ["bold"]], ["bold"], id="control sequences"),
        pytest.param(
            [[f"/tmp/raydist-0/r-0-worker-{index}-56b0cf96-0/code/a.py:3: Warning"] for index in range(2)],
            ["a.py:3: Warning"],
            id="paths of copies",
        ),
        pytest.param([[START_UP, "a"], ["a", START_UP]], ["a"], id="start-up messages"),
        pytest.param([["a"], ["a", *ABORT]], ["a"], id="what follows the failure of another worker"),
        pytest.param([["raydist: worker/0 got SIGTERM", "a"], ["a"]], ["a"], id="sentences of raydist"),
    ],
)
def test_lines_of_all_are_shown_once_and_others_with_their_tasks(
    lines: Sequence[Sequence[str]], expected: list[str]
) -> None:
    output = output_of(len(lines))
    output.add([printed(worker, *each) for worker, each in enumerate(lines)], now_s=0)
    assert shown(output, is_last=True) == expected


KERAS, TQDM = "8/8 ━━ 0s 11ms/step - loss: 1.5e-01", "a: 100%|###| 5/5 [00:00<00:00, 19.96it/s, loss=0.1]"


@pytest.mark.parametrize(
    ("first", "second", "is_equal"),
    [
        (TQDM, "a: 100%|###| 5/5 [00:01<00:00,  1.02s/it, loss=0.1]", True),
        (TQDM, "a: 100%|###| 5/5 [00:01<00:00,  1.02s/it, loss=0.2]", True),
        (TQDM, "a:  40%|#  | 2/5 [00:01<00:00, ?it/s]", True),
        (TQDM, "b: 100%|###| 5/5 [00:00<00:00, 19.96it/s, loss=0.1]", False),
        ("a:  40%|#  | 2/5 [00:00<00:01, 3.9it/s]row 1", "a:  0%|  | 0/5 [00:00<?, ?it/s]row 1", True),
        (KERAS, "8/8 ━━ 1s 8us/step - loss: 1.5e-01", True),
        (KERAS, "1/8 ━━ 1:05 11s/step - loss: 2.6", True),
        (f"{KERAS} - f1: [0. 1.]", f"{KERAS} - f1: [0. 2.]", True),
        (KERAS, "1/9 ━━ 1:05 11s/step - loss: 2.6", False),
        ("1/8 ━━ 7s 1s/step - loss: 2.3epoch 0 ends", "8/8 ━━ 0s 9ms/step - loss: 1.5epoch 0 ends", True),
        ("8/8 [====] - 2s 84ms/step - loss: nan", "1/8 [=>..] - ETA: 7s - loss: 1.1", True),
        ("5/Unknown - 1s 9ms/step - loss: 1", "4/Unknown - 1s 9ms/step - loss: 1", True),
        ("downloaded 10.0k in 3 s", "downloaded 10.0k in 5 s", True),
        ("downloaded 10.0k in 3 s", "downloaded 11.0k in 3 s", False),
    ],
)
def test_bars_of_two_workers_match_however_far_they_are_drawn(
    first: str, second: str, is_equal: bool
) -> None:
    output = output_of()
    output.add([printed(0, first, is_redrawn=True), printed(1, second, is_redrawn=True)], now_s=0)
    assert (len(shown(output, is_last=True)) == 1) is is_equal


@pytest.mark.parametrize(
    ("first", "second", "is_equal"),
    [
        ("8/8 - 0s - 8ms/step - loss: 0.2", "8/8 - 1s - 130ms/step - loss: 0.2", True),
        ("8/8 - 0s - 8ms/step - loss: 0.2", "8/8 - 0s - 8ms/step - loss: 0.3", False),
        ("took 3 s", "took 4 s", False),
        ("2026-11-29 09:30:00,123 INFO a", "2026-11-29 09:30:01,001 INFO a", True),
        ("[09:30:00] a", "[09:30:01] a", True),
        ("I1129 09:30:00.123456 1234 a.py:3] a", "I1129 09:30:00.123457 5678 a.py:3] a", True),
        ("W0000 00:00:1795.1   25032 a.cc:3] a", "W0000 00:00:1795.2   5 a.cc:3] a", True),
        ("2026-11-29 a", "2026-11-30 a", False),
    ],
)
def test_lines_match_but_for_the_time(first: str, second: str, is_equal: bool) -> None:
    assert (match_key(first) == match_key(second)) is is_equal


def test_bars_that_stop_at_another_step_keep_their_order() -> None:
    output = output_of()
    for worker, done in enumerate((1, 8)):
        lines = [f"{done}/8 ━━ 0s 9ms/step - loss: 1", "8/8 ━━ 0s 9ms/step - loss: 2"]
        output.add([printed(worker, lines[0], is_redrawn=True), printed(worker, "saved")], now_s=0)
        output.add([printed(worker, lines[1], is_redrawn=True)], now_s=0)
    assert shown(output) == ["1/8 ━━ 0s 9ms/step - loss: 1", "saved", "8/8 ━━ 0s 9ms/step - loss: 2"]


def test_line_of_the_chief_is_shown_at_once_and_only_once() -> None:
    output = output_of(3)
    output.add([printed(0, "own", "both")], now_s=0)
    assert shown(output) == ["own", "both"]
    output.add([printed(1, "both"), printed(2, "both")], now_s=60)
    assert shown(output, 60, is_last=True) == []


def test_line_of_another_worker_waits_for_the_chief() -> None:
    output = output_of()
    output.add([printed(1, "late")], now_s=0)
    assert shown(output, CHIEF_WAIT_S - 0.1) == []
    output.add([printed(0, "late")], now_s=CHIEF_WAIT_S - 0.1)
    assert shown(output, CHIEF_WAIT_S) == ["late"]
    output.add([printed(1, "own")], now_s=20)
    assert shown(output, 20 + CHIEF_WAIT_S) == ["[worker/1] own"]
    output.add([printed(0, "own")], now_s=40)
    assert shown(output, 40, is_last=True) == ["own"]


@pytest.mark.parametrize("is_chief_first", [True, False])
def test_line_that_the_chief_has_passed_waits_shorter(is_chief_first: bool) -> None:
    output = output_of()
    parts = [printed(0, "I am 0", "both"), printed(1, "I am 1", "both")]
    for part in parts if is_chief_first else reversed(parts):
        output.add([part], now_s=0)
    assert shown(output, PASSED_WAIT_S - 0.1) == ["I am 0", "both"]
    assert shown(output, PASSED_WAIT_S) == ["[worker/1] I am 1"]


def test_lines_of_a_worker_keep_their_order() -> None:
    output = output_of()
    output.add([printed(1, "a", "both", "b")], now_s=0)
    output.add([printed(0, "both")], now_s=1)
    assert shown(output, PASSED_WAIT_S) == ["both", "[worker/1] a"]
    assert shown(output, CHIEF_WAIT_S) == ["[worker/1] b"]


def test_any_interleaving_shows_each_line_as_often_as_one_task_prints_it() -> None:
    chance = random.Random(7)
    for _ in range(200):
        lines = [chance.choice("abc") for _ in range(chance.randint(1, 30))]
        output, rest, found = output_of(3), [list(lines) for _ in range(3)], []
        for own in rest[1:]:
            chance.shuffle(own)
        while any(rest):
            worker = chance.choice([index for index in range(3) if rest[index]])
            output.add([printed(worker, rest[worker].pop(0))], now_s=0)
            found += shown(output)
        assert found == lines
        assert shown(output, is_last=True) == []


def test_many_lines_are_matched_in_time_linear_in_them() -> None:
    for lines in (["a"] * MOST_WAITING, [*map(str, range(MOST_WAITING))]):
        for first in range(2):
            output = output_of()
            output.add([printed(first, *lines)], now_s=0)
            output.add([printed(1 - first, *lines)], now_s=0)
            assert shown(output, is_last=True) == lines


def test_lines_beyond_a_limit_wait_no_longer() -> None:
    output = output_of()
    output.add([printed(1, *map(str, range(MOST_WAITING + 3)))], now_s=0)
    assert shown(output) == ["[worker/1] 0", "[worker/1] 1", "[worker/1] 2"]


def test_lines_that_the_chief_alone_prints_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_output, "MOST_KEYS", 2000)
    output = output_of()
    for first in range(0, 6000, 1000):
        output.add([printed(0, *map(str, range(first, first + 1000)))], now_s=0)
        assert len(shown(output)) == 1000
    output.add([printed(1, *map(str, range(4000, 6000)))], now_s=0)
    assert shown(output, is_last=True) == []
    output.add([printed(1, "0")], now_s=0)
    assert shown(output, is_last=True) == ["[worker/1] 0"]


def test_lines_that_were_left_out_are_told_in_their_place() -> None:
    output = output_of()
    output.add([printed(0, "a", "b", left_out=1000), printed(1, "a", left_out=1001)], now_s=0)
    assert shown(output) == ["a", "b"]
    output.add([printed(1, left_out=10), printed(0, "end")], now_s=1)
    assert shown(output, 1) == [f"… 2,011 lines more in `{LOGS}`", "end"]


def test_line_that_the_chief_may_have_left_out_is_not_shown_as_a_worker_s_own() -> None:
    output = output_of()
    output.add([printed(1, "a"), printed(0, left_out=5)], now_s=0)
    assert shown(output, 1, is_last=True) == [f"… 6 lines more in `{LOGS}`"]
    output.add([printed(0, "a"), printed(1, "a")], now_s=2)
    assert shown(output, 2, is_last=True) == ["a"]


def test_lines_that_are_left_out_for_long_are_told_meanwhile() -> None:
    output, told = output_of(), []
    for now_s in range(20):
        output.add([printed(0, left_out=100), printed(1, left_out=100)], now_s=now_s)
        told += shown(output, now_s)
    assert len(told) == int(20 // (LEFT_OUT_EVERY_S + 1))
    rest = shown(output, 20, is_last=True)
    assert sum(int(line.split()[1].replace(",", "")) for line in told + rest) == 4000


@pytest.mark.parametrize(
    ("plan", "tasks"),
    [
        (make_plan(), "worker"),
        (make_plan(strategy=Strategy.PARAMETER_SERVER), "chief"),
        (make_plan(strategy=Strategy.PARAMETER_SERVER, workers=1, run_on=RunOn.ALL), "chief worker ps"),
    ],
)
def test_lines_of_tasks_that_run_the_script_count(plan: Plan, tasks: str) -> None:
    output = ScriptOutput.of(plan, logs_command=LOGS)
    output.add([Printed(task=task(f"{name}/0"), lines=(PrintedLine(text=name),)) for name in ROLES], now_s=0)
    assert [line.split()[-1] for line in shown(output, is_last=True)] == tasks.split()
