from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raydist.entry.environment import environment_of, variable_names
from raydist.errors import SpecError
from raydist.spec.settings.resolution import typed_values


def layered(*layers: dict[str, Any], environ: dict[str, str] | None = None) -> Any:
    return environment_of([typed_values(layer) for layer in layers], environ or {})


def test_higher_layer_decides_variable_by_variable(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("A=file\nB=file\nC=file\n")
    job, config = {"env": {"A": "job", "D": "job"}}, {"env_file": str(file), "env": {"B": "config"}}
    variables, _ = layered(job, config, {"env": ("C=asked", "E")}, environ={"E": "shell"})
    assert variables == {"A": "file", "B": "config", "C": "asked", "D": "job", "E": "shell"}


def test_only_the_file_that_decides_is_read(tmp_path: Path) -> None:
    assert layered({"env_file": "missing.env"}, {"env_file": "none"}) == ({}, None)
    (tmp_path / ".env").write_text("A=1\n")
    assert layered({"env_file": "missing.env"}, {"env_file": str(tmp_path / ".env")}) == ({"A": "1"}, None)


def test_runtime_env_is_a_file_or_a_mapping_with_the_content_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "requirements.txt").write_text("# why\neinops==0.8\n\nnumpy\n")
    (tmp_path / "conda.yaml").write_text("dependencies: [pip]\n")
    (tmp_path / "env.yaml").write_text("pip: requirements.txt\nenv_vars: {A: 1, B: file}\n")
    variables, runtime_env = layered({"runtime_env": "env.yaml", "env": {"B": "env"}})
    assert (variables, runtime_env) == ({"A": "1", "B": "env"}, {"pip": ["einops==0.8", "numpy"]})
    asked = {"uv": {"packages": "requirements.txt", "uv_check": False}, "conda": "conda.yaml"}
    assert layered({"runtime_env": asked})[1] == {
        "uv": {"packages": ["einops==0.8", "numpy"], "uv_check": False},
        "conda": {"dependencies": ["pip"]},
    }
    assert layered({"runtime_env": '{"conda": "named"}'})[1] == {"conda": "named"}
    assert layered({"runtime_env": asked}, {"runtime_env": "none"})[1] is None
    assert layered({"runtime_env": {"env_vars": {"A": "1"}}}) == ({"A": "1"}, None)


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ({"working_dir": "."}, "runtime_env has working_dir, but raydist itself brings the code"),
        ({"py_modules": ["a"]}, "runtime_env has py_modules, but raydist itself .* use --working-dir"),
        ({"pipp": ["a"]}, "runtime_env has the key 'pipp'; did you mean .*pip"),
        ({"pip": "nowhere.txt"}, r"cannot read the file nowhere.txt of runtime_env.pip: No such file"),
        ("nowhere.yaml", "cannot read the file nowhere.yaml of runtime_env: No such file"),
        ("{pip: [", "runtime_env is not YAML"),
        ({"env_vars": {"TF_CONFIG": "x"}}, "runtime_env.env_vars sets TF_CONFIG"),
    ],
)
def test_runtime_env_that_cannot_be_had_is_refused(written: Any, sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        layered({"runtime_env": written})


def test_names_are_those_of_options_as_they_are_written(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("C=1\n")
    assert variable_names([{"env": ("A=1", "B")}, {"env_file": str(tmp_path / ".env")}, {}]) == {
        "A",
        "B",
        "C",
    }
