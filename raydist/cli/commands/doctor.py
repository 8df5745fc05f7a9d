"""`raydist doctor`: what raydist finds on this machine, for when something does not work."""

from __future__ import annotations

import os
from collections.abc import Mapping

import click

from raydist.cli.job_options import address_option, reading_options
from raydist.cli.screen import output
from raydist.entry.request import absolute_storage
from raydist.errors import RaydistError, StorageError
from raydist.known_versions import KNOWN, installed_version
from raydist.outcome.codec import as_plain
from raydist.planning.this_machine import this_machine
from raydist.runtime.doctor.findings import Finding, bad, findings_of_disks, too_old, without_tokens
from raydist.runtime.doctor.probe import disks_here
from raydist.runtime.host.address import (
    ADDRESS_VARIABLE,
    accepts_tcp,
    describe_proxies,
    proxies_in,
    running_address,
    split_address,
)
from raydist.runtime.host.ray_session import open_dashboards
from raydist.runtime.host.software import has_metrics_agent, installed_versions, lost_parts
from raydist.runtime.task.fork_server import servers_here
from raydist.spec.quantities import size_text
from raydist.spec.settings.options import find_option

_CHECKED = "the first task on each host checks what raydist's patches do with it"
_OF_NEWER = {"tensorflow": _CHECKED, "keras": _CHECKED, "tf_keras": _CHECKED, "ray": "not tested"}
_TRAINING = "`pip install 'raydist[tensorflow]'`"


@click.command("doctor", epilog="More: `raydist guide deploying`.")
@address_option("Check each host of that Ray instead of this one.")
@reading_options
def command(address: str | None, storage: str, is_json: bool) -> int:
    """Check versions, Ray, storage and environment variables. Starts nothing.

    With --address, check each host of that Ray: versions, a matrix product on each device, disk, clock,
    storage and its speed, the network between the hosts, ports, proxies. It needs no free CPUs.

    \b
    Example:
      raydist doctor
      raydist doctor --address 10.0.0.1:6379 --storage s3://bucket/runs
    """
    found = _of_this_host(storage) if address is None else _of_hosts(address, storage)
    if is_json:
        output.print_json({"is_ok": all(each.is_ok for each in found), "findings": as_plain(found)})
    else:
        width = max(len(each.host or "") for each in found)
        for each in found:
            host = f"{(each.host or '').ljust(width)}  " if width else ""
            output.show(f"{'ok ' if each.is_ok else 'BAD'}  {host}{each.what.ljust(12)}  {each.text}")
    return next((each.exit_code for each in found if not each.is_ok), 0)


def _of_this_host(storage: str) -> list[Finding]:
    versions = [*_versions(), *(_fine("lost", sentence) for sentence in lost_parts())]
    disks = findings_of_disks(None, disks_here())
    here = [_machine(), *disks, _ray(), *_exposure(), *_kept_warm(), _metrics(), _storage(storage)]
    return [*versions, *here, *_environment(os.environ)]


def _of_hosts(address: str, storage: str) -> list[Finding]:
    from raydist.runtime.doctor.survey import survey

    with output.stdout_kept_for_json(True):  # Ray prints what the hosts print
        return survey(find_option("address").parse(address), storage_uri=absolute_storage(storage))


def _fine(what: str, text: str) -> Finding:
    return Finding(host=None, what=what, text=text)


def _versions() -> list[Finding]:
    found = []
    installed = installed_versions()
    # Without TensorFlow, on purpose: `pip install 'raydist[client]'`.
    only_submits = installed["tensorflow"] == "none"
    for name, version in installed.items():
        known, problem = KNOWN.get(name), too_old(name, version)
        text = version
        if only_submits and name == "tensorflow":
            text = (
                f"none: runs can be submitted from here, not trained here; {_TRAINING} adds what that needs"
            )
        elif version == "none" and not only_submits:
            problem = f"none; {_TRAINING} installs it"
        elif known is not None and version != "none" and known.is_newer(version):
            text = f"{version}: newer than {known.newest}; {_OF_NEWER[name]}"
        found.append(_fine(name, text) if problem is None else bad(None, name, problem))
    return found


def _machine() -> Finding:
    inventory = this_machine()
    tpu = f", TPU {inventory.tpu_name}" if inventory.tpu_name else ""
    return _fine("machine", f"{inventory.num_cpus:g} cores, {inventory.num_gpus} GPUs{tpu}")


def _ray() -> Finding:
    address = running_address()
    if address is None:
        return _fine("Ray", "none runs here: each run starts one of its own")
    try:
        host, port = split_address(address, name=ADDRESS_VARIABLE)
    except RaydistError as error:
        return bad(None, "Ray", str(error))
    is_up = accepts_tcp(host, port, timeout_s=3.0)
    if not is_up:
        return bad(None, "Ray", f"{address} does not answer")
    return _fine("Ray", f"{address} answers")


def _exposure() -> list[Finding]:
    problem = without_tokens(installed_version("ray"))
    found = [] if problem is None else [_fine("Ray", problem)]
    # No fault where a firewall is around it, as with KubeRay.
    sentence = (
        "Ray's dashboard listens on {}, and takes jobs there; start Ray with --dashboard-host=127.0.0.1"
    )
    return [*found, *(_fine("dashboard", sentence.format(where)) for where in open_dashboards())]


def _kept_warm() -> list[Finding]:
    """Tells what keeps TensorFlow imported for the next run."""
    sizes = servers_here()
    if not sizes:
        return []
    count = "1 process" if len(sizes) == 1 else f"{len(sizes)} processes"
    memory = size_text(sum(sizes.values()))
    return [_fine("kept warm", f"{count} with {memory} of memory (PSS), for the next run (--keep-warm)")]


def _metrics() -> Finding:
    if has_metrics_agent():
        return _fine("Prometheus", "a Ray that is started here serves metrics")
    remedy = "`pip install 'raydist[prometheus]'` adds what is missing"
    return _fine("Prometheus", f"a Ray that is started here serves no metrics; {remedy}")


def _storage(uri: str) -> Finding:
    from raydist.storage.filesystem import Storage

    try:
        storage = Storage.open(uri)
        storage.check_writable()
    except StorageError as error:
        return bad(None, "storage", str(error), exit_code=error.exit_code)
    return _fine("storage", f"{storage.uri()} can be written")


def _environment(environ: Mapping[str, str]) -> list[Finding]:
    """Tells which variables a task overrides, as they would break its servers or choose its Keras."""
    proxies = proxies_in(environ)
    found = [_fine("proxies", describe_proxies(proxies))] if proxies else []
    for name in ("TF_CONFIG", "TF_USE_LEGACY_KERAS", "KERAS_BACKEND"):
        if environ.get(name):
            found.append(_fine(name, f"set to {environ[name]!r}; tasks get their own value"))
    return found
