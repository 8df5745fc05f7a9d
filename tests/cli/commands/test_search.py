"""What `raydist search` refuses before it starts anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Run


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("-p rate=0..1", "metric is not given; name the one to compare trials by"),
        ("-p rate=0..1 --metric loss", "num is not given, and a range has no end; say how many trials"),
        ("-p rate=1,2 --metric loss --num 3", "num is 3, but the values make 2 combinations"),
        ("--metric loss --num 3", "num is 3, but all trials would be the same"),
        ("--metric loss", "there is nothing to search"),
        ("--seeds 2 --scheduler asha", "scheduler is asha, which compares trials"),
        ("-p rate=1,2 --metric speed", "that name does not say which values are better; add --mode max"),
        ("-p rat=1,2 --metric loss", "did you mean rate?"),
        ("-p rate=1..0 --metric loss --num 2", "has no numbers between its ends"),
        ("-p rate=1,2 --metric loss --seeds 1", "--seeds"),
        ("-p rate=1,2 --metric loss --address ray://h:1", "address is ray://h:1, and Tune needs a host"),
    ],
)
def test_mistake_is_one_sentence(
    raydist: Run, job_file: Callable[..., Path], arguments: str, sentence: str
) -> None:
    job = str(job_file('@raydist.job(params={"rate": 1.0})'))
    code, out, err = raydist("search", job, *arguments.split())
    assert (code, out) == (2, ""), err
    assert sentence in err
    assert "Traceback" not in err


def test_client_of_the_environment_is_refused_too(
    raydist: Run, job_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray://h:1")
    code, _, err = raydist(
        "search", str(job_file('@raydist.job(params={"rate": 1.0})')), "-p", "rate=1,2", "--metric", "loss"
    )
    assert code == 2
    assert "address is ray://h:1, and Tune needs a host of the cluster" in err
