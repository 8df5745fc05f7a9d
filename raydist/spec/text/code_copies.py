"""Names of the job's files: a task runs a copy of its own, whose folder says nothing to the user."""

from __future__ import annotations

import re

# In a task's scratch folder, `raydist-0/RUN-0-worker-1-56b0cf96-0`, below any temporary folder.
_SCRATCH = r"raydist-\d+/[^/\s'\"]+-\d+-[\w-]+-\d+-[0-9a-f]{8}-\d+"
_WORD = r"[^/\s'\"]+"
# A folder's name may have spaces, and then ends as names do, not as a sentence before a path: `3/4 (`.
_FOLDER = rf"/{_WORD}(?:(?: {_WORD}){{1,8}}(?<=[\w.-]))?"
_COPY = re.compile(rf"(?:{_FOLDER})+/{_SCRATCH}/code/(?=[^\s'\"])")


def as_submitted(text: str) -> str:
    """Returns `text` with the job's files as seen from the folder that was submitted: `prog.py:53`.

    The same sentence then comes from every task.
    """
    return _COPY.sub("", text) if "/code/" in text else text
