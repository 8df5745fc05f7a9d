"""plan, run and submit: the only place that joins what decides with what acts.

Ray, pyarrow and what needs them are imported by the functions that need them, because `plan` on this machine
needs neither.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raydist.controller.result import RunPlaces, RunResult
from raydist.controller.states import RunState
from raydist.errors import UnsupportedError
from raydist.planning.describe import describe_job, describe_plan
from raydist.planning.make_plan import make_plan
from raydist.planning.plan import Plan
from raydist.planning.this_machine import this_machine
from raydist.run_handle import RunHandle, checked
from raydist.runtime.address import LOCAL, running_address
from raydist.spec.process import this_process
from raydist.spec.request import Config, JobLike, Request, read_request

if TYPE_CHECKING:
    from raydist.controller.controller import Controller
    from raydist.controller.task_group import TaskGroup
    from raydist.planning.inventory import Inventory
    from raydist.runtime.connection import Connection
    from raydist.storage.run_folder import RunFolder
    from raydist.storage.segments import EventWriter

EventHook = Callable[[Mapping[str, Any]], None]


def plan(
    job: JobLike,
    *,
    config: Config = None,
    params: Mapping[str, Any] | None = None,
    param_texts: Sequence[str] = (),
    **overrides: Any,
) -> Plan:
    """Returns what `run` with the same arguments would launch, and why; starts nothing.

    With address `local`, or when no Ray runs, this machine is what it plans for; else it asks the cluster.
    """
    request = read_request(
        job,
        config=config,
        params=params,
        param_texts=param_texts,
        overrides=overrides,
        pickle=lambda function: b"",  # never sent anywhere
    )
    if _will_be_embedded(request.job.address):
        return _plan_for(request, this_machine())
    from raydist.runtime.cluster_inventory import probe_inventory
    from raydist.runtime.connection import connect

    with connect(request.job.address) as connection:
        return _plan_for(request, probe_inventory(connection))


def run(
    job: JobLike,
    *,
    config: Config = None,
    params: Mapping[str, Any] | None = None,
    param_texts: Sequence[str] = (),
    on_event: EventHook | None = None,
    check: bool = True,
    **overrides: Any,
) -> RunResult:
    """Trains `job` and returns how the run ended, once nothing of it is left running.

    Ctrl-C stops the run, and then raises KeyboardInterrupt.

    Args:
      job: `path/to/file.py[:function]`, `package.module:function`, a `Job`, or a function of one argument.
      config: A YAML file with JobSpec's field names, or its content.
      params: Typed values for the job's params.
      param_texts: The same as text, `key=value`, as the command line's `-p` has it.
      on_event: Called in this thread with each event, as raydist.controller.journal describes them.
      check: Whether a run that did not succeed raises; False returns its result, also of a cancelled one.
      **overrides: Fields of JobSpec, which are the command line's options with `_`.

    Raises:
      MistakeError: What was asked cannot be done as written.
      ClusterError: The cluster cannot give it, or could not be reached or started.
      StorageError: Storage cannot be written.
      TrainingError: The run failed while training. As with the others, once a run had been started, `result`
        is its RunResult.
    """
    called_at_s = time.monotonic()
    request = read_request(
        job, config=config, params=params, param_texts=param_texts, overrides=overrides, pickle=_pickle
    )
    with contextlib.ExitStack() as stack:
        result = _prepare(request, stack, called_at_s=called_at_s, on_event=on_event).run()
    if check and result.state is RunState.CANCELLED:
        raise KeyboardInterrupt
    return checked(result) if check else result


def submit(
    job: JobLike,
    *,
    config: Config = None,
    params: Mapping[str, Any] | None = None,
    param_texts: Sequence[str] = (),
    on_event: EventHook | None = None,
    **overrides: Any,
) -> RunHandle:
    """Starts what `run` with the same arguments runs, and returns at once; mistakes are raised here.

    The run goes on in a thread of this process, which does not end before it; `on_event` is called there.
    """
    called_at_s = time.monotonic()
    request = read_request(
        job, config=config, params=params, param_texts=param_texts, overrides=overrides, pickle=_pickle
    )
    with contextlib.ExitStack() as stack:
        controller = _prepare(request, stack, called_at_s=called_at_s, on_event=on_event)
        return RunHandle(request.job, controller, stack.pop_all())


def _prepare(
    request: Request, stack: contextlib.ExitStack, *, called_at_s: float, on_event: EventHook | None
) -> Controller:
    """Does first what a person may have to mend, then connects; `stack` closes what was opened."""
    from raydist.runtime.code_archive import pack
    from raydist.storage.run_folder import RunFolder

    job, tell = request.job, on_event or _tell_nobody
    if job.detach:
        raise UnsupportedError(
            "detach is not available yet; leave --detach out, and keep this process running"
        )
    early_plan = _plan_for(request, this_machine()) if _will_be_embedded(job.address) else None
    folder = RunFolder.claim(job)
    code = None if job.working_dir is None else pack(Path(job.working_dir))
    connection, plan = _connect(request, early_plan, stack, tell)
    events = stack.enter_context(folder.open_events())
    return _make_controller(plan, connection, code, folder, events, called_at_s=called_at_s, tell=tell)


def _connect(
    request: Request, early_plan: Plan | None, stack: contextlib.ExitStack, tell: EventHook
) -> tuple[Connection, Plan]:
    """Connects to Ray. A cluster is asked before it is planned for; an embedded Ray is made to fit."""
    from raydist.runtime.cluster_inventory import probe_inventory
    from raydist.runtime.connection import connect

    address = request.job.address
    if early_plan is not None:
        num_cpus = early_plan.embedded_cpus
        tell({"event": "ray", "message": f"starting an embedded Ray with {num_cpus} logical CPUs"})
        return stack.enter_context(connect(address, embedded_cpus=num_cpus)), early_plan
    connection = stack.enter_context(connect(address))
    tell({"event": "ray", "message": connection.source})
    return connection, _plan_for(request, probe_inventory(connection))


def _make_controller(
    plan: Plan,
    connection: Connection,
    code: bytes | None,
    folder: RunFolder,
    events: EventWriter,
    *,
    called_at_s: float,
    tell: EventHook,
) -> Controller:
    from raydist.controller.clock import SystemClock
    from raydist.controller.controller import Controller
    from raydist.controller.journal import PROGRESS
    from raydist.controller.machine import RunMachine
    from raydist.runtime.group import RayTaskGroup
    from raydist.storage.proof import StorageProof

    def start(attempt: int) -> TaskGroup:
        return RayTaskGroup.start(
            plan,
            attempt=attempt,
            connection=connection,
            code=code,
            storage_uri=plan.job.storage,
            run_uri=folder.uri,
            proof=StorageProof.leave(
                storage_uri=plan.job.storage,
                run=plan.job.name,
                is_first=attempt == folder.first_attempt,
            ),
        )

    def on_event(event: Mapping[str, Any]) -> None:
        tell(event)
        if event["event"] == PROGRESS:
            events.tick()
        else:
            events.append(event)

    on_event({"event": "planned", "at_s": time.time(), "ray": connection.source, **describe_plan(plan)})
    facts = {"spec": describe_job(plan.job), "plan": describe_plan(plan), "driver": this_process()}
    return Controller(
        RunMachine(plan, first_attempt=folder.first_attempt),
        starter=start,
        clock=SystemClock(),
        places=RunPlaces(storage=folder.uri, task_logs=folder.task_logs),
        record=lambda record: folder.record.replace({**record, **facts}),
        on_event=on_event,
        ray_s=time.monotonic() - called_at_s,
    )


def _plan_for(request: Request, inventory: Inventory) -> Plan:
    return make_plan(request.job, request.sources, inventory, wants_legacy_keras=request.wants_legacy_keras)


def _will_be_embedded(address: str | None) -> bool:
    """Whether `connect` is going to start a Ray, found without importing ray."""
    ray = sys.modules.get("ray")
    if ray is not None and hasattr(ray, "is_initialized") and ray.is_initialized():
        return False
    return address == LOCAL or (address is None and running_address() is None)


def _tell_nobody(event: Mapping[str, Any]) -> None: ...


def _pickle(function: object) -> bytes:
    from raydist.runtime.pickling import pickle_by_value

    return pickle_by_value(function)
