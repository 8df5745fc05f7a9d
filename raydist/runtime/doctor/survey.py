"""Asks each host of the connected Ray, by an actor there that takes no CPUs."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, cast

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raydist.errors import StorageError
from raydist.runtime.cluster.connection import connect
from raydist.runtime.cluster.inventory import alive_nodes
from raydist.runtime.doctor import findings
from raydist.runtime.doctor.probe import Sink, glance, look, send, versions_here
from raydist.storage.proof import StorageProof
from raydist.storage.run_storage import open_run

_START_TIMEOUT_S = 60.0
# TensorFlow may take two minutes on a host that is busy.
_LOOK_TIMEOUT_S = 200.0
_LINK_TIMEOUT_S = 30.0
# The run's next attempt waits for them. A busy host takes some time to start a process of Ray, which is no
# problem of it; a mount that hangs never answers.
_GLANCE_START_TIMEOUT_S = 20.0
_GLANCE_TIMEOUT_S = 5.0
_CLOCK_TRIES = 5


class HostProbe:
    """Runs on one host."""

    def now(self) -> float:
        return time.time()

    def look(self, proof: StorageProof) -> findings.HostFacts:
        return look(proof)

    def glance(self, proof: StorageProof, env: Mapping[str, str]) -> findings.QuickFacts:
        os.environ.update(env)
        return glance(proof)

    def listen(self) -> int:
        self._sink = Sink()
        return self._sink.port

    def send(self, host: str, port: int) -> float | str:
        """Returns the bytes a second, or why nothing could be sent."""
        try:
            return send(host, port)
        except OSError as error:
            return str(error)


def survey(address: str | None, *, storage_uri: str) -> list[findings.Finding]:
    """Returns the findings about each host of a Ray cluster.

    Args:
      address: As `connect` takes it.
      storage_uri: Absolute, as the hosts open it.

    Raises:
      ClusterError: The Ray cannot be reached.
    """
    with connect(address) as connection:
        here = findings.Finding(host=None, what="Ray", text=connection.source)
        try:
            return [here, *_survey(storage_uri)]
        except StorageError as error:
            return [here, findings.bad(None, "storage", str(error), exit_code=error.exit_code)]


def problems_of(hosts: Collection[str], proof: StorageProof, *, env: Mapping[str, str]) -> dict[str, str]:
    """Returns what is wrong with those of the hosts that have a problem or do not answer soon.

    Args:
      hosts: Their addresses. Those that Ray no longer lists as alive are skipped.
      proof: What the driver has left on the storage.
      env: Variables of the job, which the storage may need.
    """
    with _probes([node for node in alive_nodes() if _host_of(node) in hosts]) as probes:
        up = {host: probe.now.remote() for host, probe in probes.items()}
        refs = {host: probe.glance.remote(proof, env) for host, probe in probes.items()}
        times, problems = _answers(up, timeout_s=_GLANCE_START_TIMEOUT_S)
        reported, late = _answers({host: refs[host] for host in times}, timeout_s=_GLANCE_TIMEOUT_S)
        problems |= late
        for host, facts in reported.items():
            found = findings.quick_findings_of(host, facts, references={"the driver": versions_here()})
            if told := "; ".join(f"{one.what}: {one.text}" for one in found):
                problems[host] = told
    return {host: problems[host] for host in probes if host in problems}


def _survey(storage_uri: str) -> list[findings.Finding]:
    nodes = alive_nodes()
    with _proof(storage_uri) as proof, _probes(nodes) as probes:
        clocks, found = _clocks(probes)
        refs = {host: probe.look.remote(proof) for host, probe in probes.items() if host in clocks}
        references = {"the driver": versions_here()}
        resources = {_host_of(node): node["Resources"] for node in nodes}
        reported, problems = _answers(refs, timeout_s=_LOOK_TIMEOUT_S)
        found += [findings.bad(host, "host", problem) for host, problem in problems.items()]
        for host, facts in reported.items():
            found += findings.findings_of(
                host, facts, references=references, resources=resources[host], clock=clocks[host]
            )
            # What this driver lacks has to be the same on the hosts nevertheless.
            if len(references) == 1:
                references[f"host {host}"] = facts.versions
        found += _links({host: probes[host] for host in clocks})
    return sorted(found, key=lambda one: one.host or "")


def _host_of(node: Mapping[str, Any]) -> str:
    return str(node["NodeManagerAddress"])


@contextlib.contextmanager
def _proof(storage_uri: str) -> Iterator[StorageProof]:
    run = f"doctor-{secrets.token_hex(4)}"
    storage = open_run(storage_uri, run=run)
    try:
        yield StorageProof.leave(storage_uri=storage_uri, run=run)
    finally:
        storage.delete(run)


@contextlib.contextmanager
def _probes(nodes: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Starts the actors; one for each host, which may have several nodes."""
    probe_class = ray.remote(cast(Any, HostProbe))
    probes: dict[str, Any] = {}
    try:
        for node in nodes:
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            options = probe_class.options(num_cpus=0, scheduling_strategy=there)
            if _host_of(node) not in probes:
                probes[_host_of(node)] = options.remote()
        yield probes
    finally:
        for probe in probes.values():
            with contextlib.suppress(RayError):
                ray.kill(probe)


def _clocks(probes: Mapping[str, Any]) -> tuple[dict[str, findings.Clock], list[findings.Finding]]:
    """Returns the clocks of the hosts that answer, and a finding for each that does not."""
    up = {host: probe.now.remote() for host, probe in probes.items()}
    times, problems = _answers(up, timeout_s=_START_TIMEOUT_S)
    clocks: dict[str, findings.Clock] = {}
    for host in times:
        try:
            tries = [_read_clock(probes[host]) for _ in range(_CLOCK_TRIES)]
            clocks[host] = min(tries, key=lambda clock: clock.error_s)
        except RayError as error:
            problems[host] = f"was lost: {_first_line(error)}; see Ray's logs there"
    return clocks, [findings.bad(host, "host", problem) for host, problem in problems.items()]


def _read_clock(probe: Any) -> findings.Clock:
    """Returns a host's clock as of the middle of a call."""
    sent_s = time.time()
    theirs_s = ray.get(probe.now.remote(), timeout=_START_TIMEOUT_S)
    received_s = time.time()
    return findings.Clock(offset_s=theirs_s - (sent_s + received_s) / 2, error_s=(received_s - sent_s) / 2)


def _links(probes: Mapping[str, Any]) -> Iterator[findings.Finding]:
    """Has each host send to the next one, one after the other, so that none slows another one down."""
    hosts = sorted(probes)
    for source, target in zip(hosts, [*hosts[1:], *hosts[:1]], strict=True):
        if source == target:
            return
        try:
            port = ray.get(probes[target].listen.remote(), timeout=_LINK_TIMEOUT_S)
            answer = ray.get(probes[source].send.remote(target, port), timeout=_LINK_TIMEOUT_S)
        except RayError as error:
            answer = _first_line(error)
        yield findings.finding_of_link(source, target, answer)


def _answers(refs: Mapping[str, Any], *, timeout_s: float) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns what each host has answered, and for the others a sentence each."""
    answers: dict[str, Any] = {}
    problems: dict[str, str] = {}
    deadline_s = time.monotonic() + timeout_s
    for host, ref in refs.items():
        try:
            answers[host] = ray.get(ref, timeout=max(0.0, deadline_s - time.monotonic()))
        except GetTimeoutError:
            problems[host] = f"did not answer within {timeout_s:g} s; see `ray status`, and Ray's logs there"
        except RayError as error:
            cause = _first_line(error)
            problems[host] = f"cannot run raydist: {cause}; install the same raydist on each host"
    return answers, problems


def _first_line(error: BaseException) -> str:
    """Returns the last line of an error of Ray, which is its cause."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()
