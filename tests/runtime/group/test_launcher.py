"""What RayLauncher makes of a host that failed, on an inventory of the test's own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from raydist.errors import StorageError
from raydist.planning.inventory import Host, Inventory
from raydist.runtime.cluster.connection import Connection
from raydist.runtime.group import launcher as launcher_module
from raydist.runtime.group.group import LaunchSpec
from raydist.runtime.group.launcher import RayLauncher
from raydist.spec.job import WorkerRange
from raydist.storage.proof import StorageProof
from tests.support.fakes import make_plan

NAMES = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
INVENTORY = Inventory(hosts=tuple(Host(name=name, node_id=f"n{name[-1]}", num_cpus=2) for name in NAMES))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Makes every host that is asked see another storage; returns the hosts that were asked."""
    hosts: list[str] = []

    def problems_of(asked: Collection[str], proof: StorageProof, *, env: Mapping[str, str]) -> dict[str, str]:
        proof.check(host="the driver")
        hosts.extend(asked)
        return dict.fromkeys(asked, "storage: another one")

    monkeypatch.setattr(launcher_module, "problems_of", problems_of)
    for probe in ("probe_inventory", "probe_free"):
        monkeypatch.setattr(launcher_module, probe, lambda connection: INVENTORY)
    monkeypatch.setattr(launcher_module, "unreachable_hosts", lambda known=(): frozenset({"10.0.0.1"}))
    monkeypatch.setattr(launcher_module, "can_select_nodes", lambda: True)
    monkeypatch.setattr(launcher_module, "_RELEASE_S", 0.0)
    return hosts


def make_launcher(storage: Path, **fields: Any) -> RayLauncher:
    plan = make_plan(workers=2, storage=str(storage), **fields)
    connection = Connection(source="a test", address="10.0.0.1:6379", on_close=None)
    return RayLauncher(plan, LaunchSpec(connection=connection, storage_uri="unused", run_uri="unused"))


def test_suspected_host_with_a_problem_is_avoided(asked: list[str], tmp_path: Path) -> None:
    suspected = frozenset({"10.0.0.1", "10.0.0.2"})
    plan = make_launcher(tmp_path).replan(avoid=frozenset(), suspected=suspected)
    assert asked == ["10.0.0.2"]  # the other one does not answer, and is avoided for that
    assert plan.avoid == ("n1", "n2")
    assert plan.uses_of_unfit_hosts == (
        "does without host 10.0.0.2, which failed lately and still has a problem (storage: another one)",
    )


def test_later_attempt_does_not_begin_anew_on_a_storage_that_was_replaced(
    asked: list[str], tmp_path: Path
) -> None:
    launcher = make_launcher(tmp_path / "runs")
    launcher.replan(avoid=frozenset(), suspected=frozenset({"10.0.0.2"}))
    (tmp_path / "runs").rename(tmp_path / "moved")
    (tmp_path / "runs").mkdir()
    with pytest.raises(StorageError, match="the run's storage was lost or replaced during the run: "):
        launcher.replan(avoid=frozenset(), suspected=frozenset({"10.0.0.2"}))
    assert list((tmp_path / "runs").iterdir()) == []


def test_elastic_attempt_has_no_worker_on_a_host_that_does_not_answer_or_has_a_problem(
    asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = make_launcher(tmp_path, workers_range=WorkerRange(minimum=1, maximum=6))
    plan = launcher.replan(avoid=frozenset(), suspected=frozenset({"10.0.0.2"}))
    assert (plan.avoid, plan.num_workers) == (("n1", "n2"), 2)
    assert launcher.room(plan, is_placed=False) == 2
    told: list[frozenset[str]] = []

    def answering(known: frozenset[str] = frozenset()) -> frozenset[str]:
        told.append(known)
        return known

    monkeypatch.setattr(launcher_module, "unreachable_hosts", answering)
    launcher.replan(avoid=frozenset())  # which does not wait for it once more
    assert launcher.room(plan, is_placed=False) == 4  # it answers again; the other one still has its problem
    launcher.replan(avoid=frozenset())
    assert told == [{"10.0.0.1"}, set(), set()]


def test_hosts_are_not_judged_where_the_tasks_have_other_packages(asked: list[str], tmp_path: Path) -> None:
    launcher = make_launcher(tmp_path, runtime_env={"pip": ["nowhere"]})
    plan = launcher.replan(avoid=frozenset(), suspected=frozenset({"10.0.0.2"}))
    assert (asked, plan.avoid) == ([], ("n1",))
