"""Plants one defect after another in a copy of raydist, and shows which tests find it.

    python -m tests.planted_defects [--room controller] [--only 3]

Each defect is what a slip of the hand would make: a comparison the wrong way round, a case left out, a file
written in the wrong order. The default tests of its room run on the copy until one fails. Prints the first
test that fails for each defect, and those that none finds; the exit code is 1 if there are any. Run it when
tests are cut or moved: they have to find as many as before.
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

ROOT = Path(__file__).parents[1]
TESTS = {
    "controller": ("tests/controller",),
    "planning": ("tests/planning",),
    "order": ("tests/data/order", "tests/data/test_order.py", "tests/data/test_mixing.py"),
    "storage": ("tests/storage",),
}


class Defect(NamedTuple):
    """Attributes: `old`, which stands once in raydist, and what is written in its place."""

    room: str
    old: str
    new: str


DEFECTS = (
    Defect("controller", "return status.incarnation > known.incarnation", "return True"),
    Defect("controller", "if num_lost > max_failures:", "if num_lost >= max_failures:"),
    Defect("controller", "end.step <= restored_step:", "end.step < restored_step:"),
    Defect("controller", "at_s=at_s) < MAX_QUICK_DEATHS:", "at_s=at_s) <= MAX_QUICK_DEATHS:"),
    Defect("controller", "if room > num_workers:", "if room >= num_workers:"),
    Defect("controller", "return chief.checkpoint != self.checkpoint_before", "return True"),
    Defect(
        "controller", "is_another = following is RunState.STARTING and is_staying", "is_another = is_staying"
    ),
    Defect("controller", "min(since_s, _LONGEST_LOOK_S)", "since_s"),
    Defect("controller", "self._begin_attempt(number + 1)", "self._begin_attempt(number)"),
    Defect("controller", "if status.failure is None)\n        self.attempt", ")\n        self.attempt"),
    Defect("controller", "if has_succeeded(self.plan", "if not has_succeeded(self.plan"),
    Defect("controller", "second < _STEADY * first", "second < first"),
    Defect("planning", "return 1 if num_gpus >= minimum else 0", "return 1 if num_gpus > 0 else 0"),
    Defect("planning", "+ _ROUNDING < needs", "< needs"),
    Defect("planning", "/ needs + _ROUNDING)", "/ needs)"),
    Defect("planning", "tuple(base + (index < extra) for index", "tuple(base + (index <= extra) for index"),
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
    Defect("planning", "key=lambda task: task.index)", "key=lambda task: -task.index)"),
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
)


def plant(defect: Defect, tree: Path) -> None:
    """Writes the defect into the copy; raises LookupError unless its place is there once."""
    found = [path for path in (tree / "raydist").rglob("*.py") if defect.old in path.read_text()]
    if len(found) != 1 or found[0].read_text().count(defect.old) != 1:
        raise LookupError(
            f"{defect.old!r} stands in {[path.name for path in found]}, and has to be there once"
        )
    found[0].write_text(found[0].read_text().replace(defect.old, defect.new))


def first_failure(room: str, tree: Path) -> str | None:
    """Returns the first test that fails; None where all pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
    paths = [path for path in TESTS[room] if (tree / path).exists()]
    environ = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(
        [*command, *paths], cwd=tree, env=environ, capture_output=True, text=True, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return None if done.returncode == 0 else (lines or [done.stdout[-300:]])[0].split(" - ")[0]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--room", choices=TESTS)
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
            found = first_failure(defect.room, tree)
        missed += found is None
        print(f"{number} {defect.room}: {defect.new.strip()!r}: {found or 'NOT FOUND'}", flush=True)
    print(f"{missed} not found")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
