from __future__ import annotations

import pytest

from raydist.spec.text import as_submitted

COPY = "/tmp/raydist-0/bad-20261124-202228-89c6-0-worker-1-56b0cf96-0/code"
SPACED = f"/data/my tmp{COPY}"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param(f'File "{COPY}/bad.py", line 15', 'File "bad.py", line 15', id="traceback"),
        pytest.param(f"{COPY}/a/b.py:3 and {COPY}/c.py:4", "a/b.py:3 and c.py:4", id="two"),
        pytest.param(f"file=/scratch/x{COPY}/data.csv", "file=data.csv", id="elsewhere"),
        pytest.param(f"loss (/my data/a tmp{COPY}/b.py:3)", "loss (b.py:3)", id="spaces"),
        pytest.param(f"{SPACED}/b.py:3 and {SPACED}/c.py:4", "b.py:3 and c.py:4", id="two-with-spaces"),
        pytest.param(f"step 3/4 of x ({SPACED}/b.py) a/b", "step 3/4 of x (b.py) a/b", id="other-slashes"),
        pytest.param(f"/etc/my x and {SPACED}/b.py", "/etc/my x and b.py", id="other-path"),
        pytest.param(f"{COPY.replace('worker-1', 'my-eval-0')}/b.py", "b.py", id="extra-role"),
        pytest.param(f"cwd={COPY}", f"cwd={COPY}", id="folder"),
        pytest.param("/home/u/raydist-2/code/bad.py", "/home/u/raydist-2/code/bad.py", id="own"),
    ],
)
def test_job_files_are_named_as_the_user_knows_them(text: str, shown: str) -> None:
    assert as_submitted(text) == shown
