"""The versions that raydist knows are those that pip installs, and those that tests/compat runs."""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from raydist.known_versions import KNOWN, KnownVersions, installed_version
from tests.compat.environments import version_sets

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]


def bounds() -> dict[str, Requirement]:
    lines = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["tensorflow"]]
    found = [Requirement(line) for line in lines]
    return {requirement.name: requirement for requirement in found}


def test_what_pip_installs_is_what_raydist_knows() -> None:
    asked = {name: str(requirement.specifier) for name, requirement in bounds().items() if name in KNOWN}
    wanted = {name: Requirement(f"{name}{known.requirement}") for name, known in KNOWN.items()}
    assert asked == {name: str(requirement.specifier) for name, requirement in wanted.items()}


def test_sets_are_within_the_bounds_and_reach_both_ends() -> None:
    sets = version_sets()
    for versions in (one for one in sets.values() if not one.provides):  # which are newer
        assert re.fullmatch(r"3\.1[0-3]", versions.python)
        for pin in map(Requirement, versions.pins):
            [exact] = pin.specifier
            assert exact.version in bounds()[pin.name].specifier, f"{versions.name}: {pin}"
    for end in ("oldest", "newest"):
        pins = {pin.name: str(pin.specifier) for pin in map(Requirement, sets[end].pins)}
        for name, known in KNOWN.items():
            assert pins[name].startswith(f"=={getattr(known, end)}."), (end, name)


def test_versions_are_compared_by_their_numbers() -> None:
    known = KnownVersions(oldest="3.9", newest="3.15")
    assert [known.is_newer(version) for version in ("3.15.9", "3.16.0rc1", "4.0.0")] == [False, True, True]
    assert [known.is_older(version) for version in ("3.9.0", "3.8.7", "3.10.0")] == [False, True, False]
    assert known.requirement == ">=3.9,<3.16"


@pytest.mark.parametrize(
    ("library", "distribution"),
    [
        *(("tensorflow", "tensorflow-cpu"), ("tensorflow", "tf-nightly"), ("keras", "keras-nightly")),
        *(("tf_keras", "tf-keras-nightly"), ("ray", "ray")),
    ],
)
def test_any_distribution_of_a_library_tells_its_version(
    library: str, distribution: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if name != distribution:
            raise metadata.PackageNotFoundError
        return "3.16.0.dev2026102704"

    monkeypatch.setattr(metadata, "version", version)
    assert installed_version(library) == "3.16.0.dev2026102704"
