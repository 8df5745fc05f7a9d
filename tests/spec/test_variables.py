from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raydist.entry.environment import read_env_file
from raydist.errors import SpecError
from raydist.spec.variables import at_start, parse_variables, with_own_values


@pytest.mark.parametrize(
    ("written", "parsed"),
    [
        (("A=1", "B=x=y", "C"), {"A": "1", "B": "x=y", "C": None}),
        (["A=1", "A=2"], {"A": "2"}),
        ({"A": 1, "B": 0.5, "C": None, "D": ""}, {"A": "1", "B": "0.5", "C": None, "D": ""}),
        (("KERAS_BACKEND=tensorflow",), {"KERAS_BACKEND": "tensorflow"}),
    ],
)
def test_variables_are_a_mapping_or_texts(written: Any, parsed: dict[str, str | None]) -> None:
    assert parse_variables("env", written) == parsed


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ("A=hush", "env is not a mapping; write KEY=VALUE"),
        ([{"A": "hush"}], "env has a dict in its list; write text such as 'KEY=VALUE'"),
        (["2A=hush"], "env has the variable '2A'; use letters"),
        (["A-B=hush"], "env has the variable 'A-B'"),
        ({"A": True}, "env.A is of type bool; write text, in quotes"),
        ({"A": ["hush"]}, "env.A is of type list"),
        (["A=hush\0"], "env sets A to text with a NUL character"),
        (["TF_CONFIG={}"], "env sets TF_CONFIG; raydist makes it from the tasks' addresses"),
        (["CUDA_VISIBLE_DEVICES=0"], "env sets CUDA_VISIBLE_DEVICES; .* use --gpus"),
        (["KERAS_BACKEND=jax"], "env sets KERAS_BACKEND; raydist trains with TensorFlow only"),
    ],
)
def test_mistake_is_told_without_the_value(written: Any, sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence) as caught:
        parse_variables("env", written)
    assert "hush" not in str(caught.value)


def test_name_alone_takes_the_value_that_the_caller_has() -> None:
    assert with_own_values("env", {"A": None, "B": "2"}, {"A": "1", "B": "9"}) == {"A": "1", "B": "2"}
    with pytest.raises(SpecError, match=r"env names C, D without a value, .*--env C=VALUE, or export it"):
        with_own_values("env", {"A": None, "C": None, "D": None}, {"A": "1"})


def test_what_a_process_reads_when_it_starts_is_parted_from_the_rest() -> None:
    variables = dict.fromkeys(
        ("LD_PRELOAD", "PYTHONPATH", "OMP_NUM_THREADS", "TZ", "TF_NUM_INTRAOP_THREADS", "NCCL_DEBUG"), "1"
    )
    assert set(at_start(variables)) == {"LD_PRELOAD", "PYTHONPATH", "OMP_NUM_THREADS", "TZ"}


def test_env_file_is_read_as_docker_and_dotenv_do(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text(
        '# a comment\n\nA=1\nexport B = \'x # y\'  # why\nC="one\\ntwo \\"q\\""\nD\nE=\nF=a b # c\nG=a#b\n'
    )
    assert read_env_file(file) == {
        **{"A": "1", "B": "x # y", "C": 'one\ntwo "q"', "D": None, "E": "", "F": "a b", "G": "a#b"}
    }


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"A=1\nhush hush=2\n", "line 2: env_file has a line that is not KEY=VALUE"),
        (b"A=1\n\n1B=hush\n", "line 3: env_file has the variable '1B'"),
        (b"TF_CONFIG=hush\n", "line 1: env_file sets TF_CONFIG"),
        (b"\xff\xfe", "is not UTF-8 text"),
    ],
)
def test_mistake_in_an_env_file_is_told_with_its_line(tmp_path: Path, content: bytes, sentence: str) -> None:
    (tmp_path / ".env").write_bytes(content)
    with pytest.raises(SpecError, match=sentence) as caught:
        read_env_file(tmp_path / ".env")
    assert "hush" not in str(caught.value)


def test_env_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"cannot read the env_file .*none\.env: No such file"):
        read_env_file(tmp_path / "none.env")
