"""Options that are gone: wherever they are written, a sentence says what replaces them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import raydist as package
from raydist.cli.commands import rerun
from raydist.errors import SpecError
from raydist.planning.describe import describe_job
from raydist.spec.settings.options import OPTIONS
from raydist.spec.settings.removed import REMOVED
from raydist.storage.run_record import RunRecordStore
from raydist.storage.run_storage import open_run
from tests.cli.conftest import Run
from tests.support.records import make_record

SET = "other"  # the value that an older run had set; nothing reads it any more


@pytest.mark.parametrize("name", REMOVED)
@pytest.mark.parametrize("place", ["command line", "config", "decorator", "Python"])
def test_removed_option_is_refused_with_what_replaces_it(
    name: str, place: str, raydist: Run, job_file: Callable[..., Path]
) -> None:
    job_file(f"@raydist.job({name}=1)" if place == "decorator" else "@raydist.job")
    sentence = f"option '{name}' was removed; {REMOVED[name].remedy}"
    assert name not in {option.name for option in OPTIONS}
    if place == "Python":
        with pytest.raises(SpecError) as caught:
            package.plan("job.py", address="local", **{name: 1})
        assert str(caught.value) == sentence
        return
    Path("config.yaml").write_text(f"{name}: 1\n" if place == "config" else "")
    given = [f"--{name.replace('_', '-')}"] if place == "command line" else []
    code, out, err = raydist("plan", "job.py", "-c", "config.yaml", "--address", "local", *given)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert sentence in err


@pytest.mark.parametrize("name", REMOVED)
def test_older_run_that_had_set_it_is_shown_and_continued_with_a_note(
    name: str, raydist: Run, job_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = describe_job(package.plan(str(job_file()), address="local", name="old").job)
    defaults = {one: removed.default for one, removed in REMOVED.items()}
    for run, value in (("old", SET), ("plain", REMOVED[name].default)):
        storage = open_run("raydist_runs", run=run)
        kept = {**spec, "name": run, **defaults, name: value}
        RunRecordStore(storage).replace(make_record(storage, state="FAILED", attempts=1, spec=kept))
    given: list[Any] = []
    monkeypatch.setattr(rerun.running, "run_job", lambda *_, **options: given.append(options) or 0)
    for arguments in (["list"], ["status", "old"], ["describe", "old"], ["diff", "old", "plain"]):
        code, out, err = raydist(*arguments)
        assert (code, err) == (0, "")
        assert "old" in out
    notes = []
    for run in ("old", "plain"):
        code, _, err = raydist("resume", run)
        assert code == 0
        assert name not in given[-1]["config"]
        notes.append(err)
    assert f"the run had {name} {SET}" in notes[0]
    assert REMOVED[name].remedy in notes[0]
    assert notes[1] == ""
