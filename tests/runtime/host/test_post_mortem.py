"""What is known of a process that died without a word, with real processes and without Ray."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from raydist.runtime.host import post_mortem
from raydist.runtime.host.post_mortem import MAX_LINES, OomCounter, describe_exit, examine

# As Ray 2.60 and faulthandler write it; the native stack is shortened.
_CRASH = """\
epoch 1
[2026-11-22 09:52:00,521 E 13995 13995] logging.cc:474: *** SIGSEGV received at time=1795341120 on cpu 0 ***
[2026-11-22 09:52:00,521 E 13995 13995] logging.cc:474:     @     0x7f6255b00570         64  TFE_Copy
    @     0x7f6255b00570         64  TFE_TensorHandleCopyToDevice
Fatal Python error: Segmentation fault

Stack (most recent call first):
  File "/tmp/raydist-0/run-0-worker-1-56b0cf96-0/code/job.py", line 6 in train
Extension modules: msgpack._cmsgpack, google._upb._message (total: 105)
"""


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    (tmp_path / "log").write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-9, "was killed by SIGKILL"),
        (-6, "was killed by SIGABRT"),
        (7, "ended with exit code 7"),
        (0, "ended with exit code 0"),
        (-40, "was killed by signal 40"),
    ],
)
def test_exit_code_is_told_in_words(code: int, words: str) -> None:
    assert describe_exit(code) == words


def test_crash_is_shown_without_its_native_stack(scratch: Path) -> None:
    (scratch / "log").write_text("line\n" * 50 + _CRASH + "more\n" * 50)
    finding = examine(scratch, code=-signal.SIGSEGV, oom=None)
    assert finding.how == "was killed by SIGSEGV"
    lines = finding.log_end.splitlines()
    assert len(lines) == MAX_LINES
    assert lines[5:10] == [
        "epoch 1",
        "Fatal Python error: Segmentation fault",
        "Stack (most recent call first):",
        '  File "job.py", line 6 in train',
        "more",
    ]


def test_end_of_a_log_has_no_control_sequences(scratch: Path) -> None:
    (scratch / "log").write_text("\x1b[1mepoch\x1b[0m 1\x1b]0;owned\x07\n10%\r20%\n")
    assert examine(scratch, code=1, oom=None).log_end == "epoch 1\n20%"


def test_kernel_knows_better_than_the_log(scratch: Path) -> None:
    (scratch / "log").write_text(_CRASH + "the crash of a data loader, which was outlived\n")
    finding = examine(scratch, code=-signal.SIGKILL, oom=None)
    assert finding.how == "was killed by SIGKILL"
    assert finding.log_end.endswith("which was outlived")


@pytest.mark.parametrize(
    ("code", "num_killed", "how"),
    [
        (-9, 0, "was killed by SIGKILL, not by the kernel's OOM killer"),
        (-9, 1, "was killed by SIGKILL, by the kernel's OOM killer: the memory of its host or container ran"),
        (-9, None, "was killed by SIGKILL"),
        (7, 1, "ended with exit code 7"),
    ],
)
def test_oom_killer_is_named_for_what_was_killed(
    scratch: Path, code: int, num_killed: int | None, how: str
) -> None:
    counter = None
    if num_killed is not None:
        counter = OomCounter(path=scratch / "memory.events", before=2)
        counter.path.write_text(f"oom 9\noom_kill {2 + num_killed}\noom_group_kill 0\n")
    assert str(examine(scratch, code=code, oom=counter).how).startswith(how)


@pytest.mark.parametrize(
    ("counter", "file", "text", "limit"),
    [
        ("memory.events", "memory.max", f"{2 << 30}\n", 2 << 30),
        ("memory.events", "memory.max", "max\n", None),
        ("memory.oom_control", "memory.limit_in_bytes", f"{1 << 29}\n", 1 << 29),
        ("memory.oom_control", "memory.limit_in_bytes", "9223372036854771712\n", None),
        ("vmstat", "memory.max", "1\n", None),
    ],
)
def test_limit_is_that_of_the_cgroup(
    tmp_path: Path, counter: str, file: str, text: str, limit: int | None
) -> None:
    (tmp_path / file).write_text(text)
    (tmp_path / counter).write_text("oom_kill 1\n")
    found = OomCounter(path=tmp_path / counter, before=0)
    assert found.limit_bytes() == limit
    finding = examine(tmp_path, code=-9, oom=found)
    assert finding.is_out_of_memory
    assert ("of its container, " in finding.how) is (limit is not None)


def test_folder_that_is_gone_tells_nothing_of_the_log(tmp_path: Path) -> None:
    assert examine(tmp_path / "gone", code=-9, oom=None).log_end == ""


@pytest.mark.parametrize(
    ("cgroups", "file"),
    [
        ("0::/pod/task\n", "pod/task/memory.events"),
        ("4:memory:/pod\n1:cpu:/\n0::/\n", "memory/pod/memory.oom_control"),
        ("0::/\n", None),
    ],
)
def test_counter_is_that_of_the_cgroup_else_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cgroups: str, file: str | None
) -> None:
    (tmp_path / "cgroup").write_text(cgroups)
    (tmp_path / "vmstat").write_text("pgfault 7\noom_kill 5\n")
    for name, path in (("_OWN_CGROUPS", "cgroup"), ("_HOST", "vmstat"), ("_CGROUPS", "")):
        monkeypatch.setattr(post_mortem, name, tmp_path / path)
    if file is not None:
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text("oom_kill_disable 0\noom_kill 3\n")
    assert OomCounter.read() == OomCounter(path=tmp_path / (file or "vmstat"), before=3 if file else 5)


_HUNGRY = """
import sys
from pathlib import Path
from raydist.runtime.host.post_mortem import OomCounter
Path(sys.argv[1], "cgroup.procs").write_text(str(__import__("os").getpid()))
print(OomCounter.read().path, OomCounter.read().before, flush=True)
input()
eaten = [bytearray(b"x" * (4 << 20)) for _ in range(100)]
"""
_LIMIT_BYTES = 64 << 20


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """A memory cgroup with little room."""
    root = Path("/sys/fs/cgroup")
    is_v1 = (root / "memory").is_dir()
    cgroup = (root / "memory" if is_v1 else root) / f"raydist-test-{os.getpid()}"
    try:
        cgroup.mkdir()
        (cgroup / ("memory.limit_in_bytes" if is_v1 else "memory.max")).write_text(str(_LIMIT_BYTES))
    except OSError as error:
        pytest.skip(f"memory cgroups cannot be made here: {error}")
    yield cgroup
    cgroup.rmdir()


def test_process_that_the_kernel_kills_for_memory_is_told_so(scratch: Path, small_cgroup: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen(
        [sys.executable, "-c", _HUNGRY, str(small_cgroup)],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    path, before = process.stdout.readline().split()
    process.communicate("\n", timeout=60)
    assert process.returncode == -signal.SIGKILL
    counter = OomCounter(path=Path(path), before=int(before))
    finding = examine(scratch, code=-9, oom=counter)
    assert "by the kernel's OOM killer: the memory of its container, 64 MiB, ran out" in finding.how
    assert finding.is_out_of_memory
