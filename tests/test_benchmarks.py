"""`python -m tests.benchmarks`: scripts that a test makes up, run as those of tests/benchmarks are."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.figures import printing
from tests.benchmarks.figures.record import RECORD
from tests.benchmarks.figures.table import BENCHMARKS

ROOT = Path(__file__).parents[1]
PRINT = "from tests.benchmarks.figures.printing import figure\nfigure({name!r}, [1.0, 3.0, 2.0], 's')\n"


def program(folder: Path, *scripts: str, requires: tuple[str, ...] = ()) -> list[str]:
    """Returns the command that runs scripts, given by their text, as benchmarks `script_0` and so on."""
    for number, text in enumerate(scripts):
        (folder / "made_up").mkdir(exist_ok=True)
        (folder / "made_up" / f"script_{number}.py").write_text(text)
    options = f"quick='', minutes=0.1, package='made_up', requires={requires!r}"
    made = ", ".join(f"Benchmark('script_{number}', {options})" for number in range(len(scripts)))
    code = "from tests.benchmarks.__main__ import run\nfrom tests.benchmarks.figures.table import Benchmark\n"
    return [sys.executable, "-c", f"{code}raise SystemExit(run([{made}], is_quick=False, is_written=False))"]


def start(folder: Path, command: list[str]) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{folder}", "TMPDIR": str(folder)}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, env=env, stdout=pipe, stderr=pipe, text=True)


def outcome(folder: Path, *scripts: str, **options: Any) -> tuple[int, list[dict[str, Any]], str]:
    """Returns the exit code, the figures and what is on stderr."""
    process = start(folder, program(folder, *scripts, **options))
    out, err = process.communicate(timeout=120)
    return process.returncode, [json.loads(line) for line in out.splitlines()], err


def test_figures_are_json_lines_with_their_circumstances(tmp_path: Path) -> None:
    code, [line], _ = outcome(tmp_path, PRINT.format(name="speed"))
    assert code == 0
    assert {key: line[key] for key in ("figure", "value", "unit", "min", "max", "rounds")} == {
        "figure": "script_0.speed",
        "value": 2.0,
        "unit": "s",
        "min": 1.0,
        "max": 3.0,
        "rounds": 3,
    }
    assert line["date"] == time.strftime("%Y-%m-%d")
    assert {"commit", "machine", "arguments"} <= set(line)


def test_script_that_fails_is_one_sentence_and_the_others_go_on(tmp_path: Path) -> None:
    broken = PRINT.format(name="first") + "raise SystemExit('the disk is full')\n"
    code, lines, err = outcome(tmp_path, broken, "print('no figure')", PRINT.format(name="last"))
    assert code == 1
    assert [line["figure"] for line in lines] == ["script_0.first", "script_2.last"]
    failed = [line for line in err.splitlines() if line.startswith("failed: ")]
    assert [line.partition("; see ")[0] for line in failed] == [
        "failed: script_0: exit code 1: the disk is full",
        "failed: script_1: printed no figure",
    ]
    output = Path(failed[0].partition("; see ")[2]).read_text()
    assert output == "script_0.first: 2 s (1 to 3, 3 rounds)\nthe disk is full\n"
    assert "1 of 3 benchmarks worked" in err


def test_nothing_that_a_script_started_is_left(tmp_path: Path) -> None:
    leaving = "import subprocess\nprocess = subprocess.Popen(['sleep', '300'], start_new_session=True)\n"
    note = f"open({str(tmp_path / 'pid')!r}, 'w').write(str(process.pid))\n"
    code, _, _ = outcome(tmp_path, PRINT.format(name="speed") + leaving + note)
    assert code == 0
    assert not Path("/proc", (tmp_path / "pid").read_text()).exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_ends_all_that_was_started(tmp_path: Path, number: signal.Signals) -> None:
    waiting = (
        "import signal, subprocess, time\n"
        "process = subprocess.Popen(['sleep', '300'], start_new_session=True)\n"
        f"open({str(tmp_path / 'pid.new')!r}, 'w').write(str(process.pid))\n"
        f"import os; os.rename({str(tmp_path / 'pid.new')!r}, {str(tmp_path / 'pid')!r})\n"
        "time.sleep(300)\n"
    )
    process = start(tmp_path, program(tmp_path, PRINT.format(name="speed") + waiting, PRINT.format(name="b")))
    deadline = time.monotonic() + 60
    while not (tmp_path / "pid").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert [json.loads(line)["figure"] for line in out.splitlines()] == ["script_0.speed"]
    assert "Traceback" not in err
    assert not Path("/proc", (tmp_path / "pid").read_text()).exists()


def wheel(folder: Path) -> Path:
    path = folder / "tiny_addition-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_addition.py", "VALUE = 7.0\n")
        info = "tiny_addition-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-addition\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.mark.slow
def test_what_a_script_needs_is_installed_for_it_alone(tmp_path: Path) -> None:
    using = "import tiny_addition\nfrom tests.benchmarks.figures.printing import figure\n"
    using += "figure('value', tiny_addition.VALUE, 's')\n"
    code, [line], _ = outcome(tmp_path, using, requires=(str(wheel(tmp_path)),))
    assert (code, line["value"]) == (0, 7.0)
    with pytest.raises(ModuleNotFoundError):
        __import__("tiny_addition")


def test_what_cannot_be_installed_is_one_sentence(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing-1.0-py3-none-any.whl")
    code, _, err = outcome(tmp_path, PRINT.format(name="speed"), requires=(missing,))
    assert code == 1
    assert f"failed: script_0: needs `pip install {missing}`, which failed: " in err


def test_figure_has_its_ratio_to_what_it_is_compared_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(printing.FILE, str(tmp_path / "lines"))
    monkeypatch.setattr(sys, "argv", ["launch.py"])
    printing.figure("cold", [2.0, 4.0, 3.0], "s", against=("by hand", [4.0, 5.0, 10.0]))
    line = json.loads((tmp_path / "lines").read_text())
    assert (line["compared_with"], line["other"], line["ratio"]) == ("by hand", 5.0, 0.6)
    assert (line["ratio_min"], line["ratio_max"]) == (0.3, 0.8)
    assert capsys.readouterr().out == "launch.cold: 3 s (2 to 4, 3 rounds), 0.6 of by hand (5 s)\n"


def test_every_script_is_run() -> None:
    scripts = {path.stem for path in (ROOT / "tests/benchmarks").glob("*.py")} - {"__main__"}
    assert {one.script for one in BENCHMARKS} == scripts


def test_all_of_them_take_half_an_hour() -> None:
    assert round(sum(one.minutes for one in BENCHMARKS if not one.is_long), 1) <= 30


def test_figures_of_the_record_are_those_of_scripts_with_date_commit_and_machine() -> None:
    scripts = {one.script for one in BENCHMARKS}
    for line in map(json.loads, RECORD.read_text().splitlines()):
        assert line["figure"].partition(".")[0] in scripts
        assert all(line[key] for key in ("date", "commit", "machine"))
        assert {"value", "min", "max", "rounds"} <= set(line)


def test_quick_figures_are_not_written() -> None:
    command = [sys.executable, "-m", "tests.benchmarks", "--quick", "--write"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "--quick measures too little" in done.stderr
