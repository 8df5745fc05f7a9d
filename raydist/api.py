"""plan, run, submit and attach: from what a person asks to a run.

Ray, pyarrow and what needs them are imported by the functions that need them, because `plan` on this machine
needs neither.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raydist.entry.request import Config, JobLike, Request, read_request
from raydist.errors import MistakeError, RaydistError, SpecError, StorageError
from raydist.outcome.result import RunResult
from raydist.outcome.status import RunState
from raydist.planning.capacity import check_fits_beside
from raydist.planning.fitting import with_data_room
from raydist.planning.inventory import SIMULATED, simulated_inventory
from raydist.planning.make_plan import make_plan
from raydist.planning.plan import Plan
from raydist.planning.this_machine import this_machine
from raydist.runs.evidence import traced_code
from raydist.runs.handle import RunHandle, ThreadedRun, checked
from raydist.runs.hooks import GuardedHook
from raydist.runs.notebook import display_in_cell, hide_advice
from raydist.runtime.cluster.connection import EmbeddedSize, connect, end_with_ray
from raydist.runtime.cluster.datasets import check_datasets, check_resumed, serialize
from raydist.runtime.host.address import LOCAL, running_address
from raydist.runtime.host.salvage import new_owner
from raydist.runtime.task.code_archive import pack, size_note
from raydist.runtime.task.fork_client import started_ahead, started_beside
from raydist.spec.job import JobSpec
from raydist.spec.params import check_params, merge_params
from raydist.spec.secrecy import redact
from raydist.spec.settings.decorator import RunOptions, shows_options
from raydist.spec.settings.options import find_option
from raydist.storage.provenance import CodeRecord
from raydist.train_context import context
from raydist.watch.watcher import DrivenRun, watched

if sys.version_info >= (3, 11):
    from typing import Unpack
else:
    from typing_extensions import Unpack

if TYPE_CHECKING:
    from raydist.controller.controller import Controller
    from raydist.planning.inventory import Inventory
    from raydist.runtime.cluster.connection import Connection
    from raydist.storage.run_folder import RunFolder

EventHook = Callable[[Mapping[str, Any]], None]

_EMBEDDED_CANNOT_DETACH = (
    "detach is asked, but an embedded Ray ends with this process; start one that stays with "
    "`raydist up`, or give a cluster's with --address"
)


@shows_options
def plan(
    job: JobLike,
    *,
    config: Config = None,
    params: Mapping[str, Any] | None = None,
    **options: Unpack[RunOptions],
) -> Plan:
    """Returns what `run` with the same arguments would launch, and why; starts nothing.

    With address `local`, or when no Ray runs, it plans for this machine; otherwise it asks the cluster. With
    `simulated:hosts=1250,cpus=8,gpus=8,memory=64GiB` it plans for hosts that are described.

    Example:
        plan = raydist.plan("jobs/cifar.py", workers=2)
        print(plan.strategy.value, plan.reason)

    Args:
      job: As in `run`; so are `config`, `params` and the options.

    Raises:
      MistakeError: What was asked cannot be done as written.
      ClusterError: The cluster cannot give it, or could not be reached.
    """
    # What is pickled is never sent anywhere.
    return _plan_of(_read(job, config, params, options, pickle=lambda function: b""))


def _read(
    job: JobLike,
    config: Config,
    params: Mapping[str, Any] | None,
    options: Mapping[str, Any],
    *,
    datasets: Mapping[str, Any] | None = None,
    pickle: Callable[[object], bytes] | None = None,
) -> Request:
    hide_advice()
    return read_request(
        job,
        config=config,
        params=params,
        overrides=options,
        pickle=pickle or _pickle,
        datasets=check_datasets(datasets),
    )


def _plan_of(request: Request) -> Plan:
    address = request.job.address
    if address is not None and address.startswith(SIMULATED):
        return _plan_for(request, simulated_inventory(address))
    if _will_be_embedded(address):
        return _plan_for(request, this_machine())
    from raydist.runtime.cluster.inventory import probe_inventory

    with connect(address) as connection:
        return _plan_for(request, probe_inventory(connection))


@shows_options
def run(
    job: JobLike,
    *,
    config: Config = None,
    params: Mapping[str, Any] | None = None,
    datasets: Mapping[str, Any] | None = None,
    on_event: EventHook | None = None,
    check: bool = True,
    **options: Unpack[RunOptions],
) -> RunResult:
    """Trains `job` and returns how the run ended, once nothing of it is left running.

    Example:
        result = raydist.run("jobs/cifar.py", workers=2, timeout="2h", params={"epochs": 3})
        print(result.state, result.metrics["loss"], result.checkpoint)

    In a notebook the cell shows state, progress and curves while the run is running.

    Ctrl-C stops the run, and then raises KeyboardInterrupt. With `detach` it returns once the cluster has
    accepted the run, whose state then is STARTING.

    When Ray dies on this host (`ray stop`, a killed raylet), Ray ends the calling process with exit code 1;
    no exception can be raised. A watcher process, started beside each run, then writes the run's last
    record, ends what is left of it on this host, and says on stderr how to resume it. `raydist submit`
    ends with exit code 3, and a detached run does not depend on the caller.

    Args:
      job: `path/to/file.py[:function]`, `package.module:function`, a `Job`, or a function of one argument.
      config: A YAML file with JobSpec's field names, or its content.
      params: Typed values for the job's params. A job that declares none takes any.
      datasets: `ray.data.Dataset`s by name. `ctx.dataset(name)` is each worker's share of the stream.
      on_event: Called in this thread with each event, as `raydist guide from-python` lists them. If it raises
        RunCancelledError, the run is stopped, and `run` raises that error. Any other exception that it raises
        is a note of the run and changes nothing else.
      check: Whether a run that did not succeed raises; False returns its result, also of a cancelled one.
      **options: Fields of JobSpec, which are the command line's options with `_`. Times are seconds, or
        text such as `90s`, `5m` and `2h`.

    Raises:
      MistakeError: What was asked cannot be done as written.
      ClusterError: The cluster cannot give it, or could not be reached or started.
      StorageError: Storage cannot be written.
      TrainingError: The run failed while training, or was stopped (RunCancelledError). As with the others,
        once a run had been started, `result` is its RunResult.
    """
    called_at_s = time.monotonic()
    request = _read(job, config, params, options, datasets=datasets)
    succeeded = _succeeded_before(request, on_event)
    if succeeded is not None:
        return succeeded
    if request.job.detach:
        return _submit_detached(request, called_at_s=called_at_s, on_event=on_event).status()
    display = display_in_cell(request.job.name)
    tell = GuardedHook(on_event if display is None else display.beside(on_event))
    with contextlib.ExitStack() as stack:
        result = _prepare(request, stack, called_at_s=called_at_s, tell=tell).run()
    if display is not None:
        display.end(result)
    if check and result.state is RunState.CANCELLED and not tell.asks_for_stop:
        raise KeyboardInterrupt
    return checked(result) if check else result


@shows_options
def submit(
    job: JobLike,
    *,
    config: Config = None,
    params: Mapping[str, Any] | None = None,
    datasets: Mapping[str, Any] | None = None,
    on_event: EventHook | None = None,
    **options: Unpack[RunOptions],
) -> RunHandle:
    """Starts what `run` with the same arguments runs, and returns at once; mistakes are raised here.

    The run continues in a thread of this process, which does not end before it; `on_event` is called there.
    With `detach` it continues in the Ray cluster, even if this process ends, and `on_event` is called only
    until the run is accepted.

    Example:
        handle = raydist.submit("jobs/cifar.py", workers=2)
        print(handle.status().steps)
        result = handle.result(timeout="2h")

    Args:
      job: As in `run`; so are `config`, `params`, `datasets`, `on_event` and the options.

    Raises:
      MistakeError: What was asked cannot be done as written.
      ClusterError: The cluster cannot give it, or could not be reached or started.
      StorageError: Storage cannot be written.
    """
    called_at_s = time.monotonic()
    request = _read(job, config, params, options, datasets=datasets)
    return _submit(request, called_at_s=called_at_s, on_event=on_event)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackedJob:
    """A job that was read once, for any number of runs of it, in any process.

    Attributes:
      request: What its runs have in common.
      code: The packed working directory; None where none travels.
      traced: Where the code comes from.
    """

    request: Request
    code: bytes | None
    traced: CodeRecord | None

    def run_of(self, name: str, *, params: Mapping[str, Any], **fields: Any) -> PackedJob:
        """Returns it for one run, with these `params` above its own and other fields of JobSpec.

        Raises:
          SpecError: The job lacks a param, or a value has another type than the param's default.
        """
        job = self.request.job
        merged = merge_params(job.params, [(check_params(params), "")])
        job = dataclasses.replace(job, name=name, params=merged, **fields)
        return dataclasses.replace(self, request=dataclasses.replace(self.request, job=job))


def pack_job(
    job: JobLike, *, config: Config, params: Mapping[str, Any] | None, options: Mapping[str, Any]
) -> PackedJob:
    """Reads a job as `run` does; raises MistakeError for what cannot be read."""
    request = _read(job, config, params, options)
    code = None if request.job.working_dir is None else pack(Path(request.job.working_dir))
    with traced_code(code, request.job) as trace:
        return PackedJob(request=request, code=code, traced=trace())


def plan_packed(packed: PackedJob) -> Plan:
    """Returns what a run of it would launch, as `plan` does."""
    return _plan_of(packed.request)


def submit_packed(packed: PackedJob, *, on_event: EventHook | None = None) -> RunHandle:
    """Starts a run as `submit` does."""
    return _submit(packed.request, called_at_s=time.monotonic(), on_event=on_event, packed=packed)


def _submit(
    request: Request, *, called_at_s: float, on_event: EventHook | None, packed: PackedJob | None = None
) -> RunHandle:
    name, storage = request.job.name, request.job.storage
    if _succeeded_before(request, on_event) is not None:
        return attach(name, storage=storage)
    if request.job.detach:
        return _submit_detached(request, called_at_s=called_at_s, on_event=on_event)
    tell = GuardedHook(on_event)
    with contextlib.ExitStack() as stack:
        controller = _prepare(request, stack, called_at_s=called_at_s, tell=tell, packed=packed)
        return RunHandle(name, ThreadedRun(name, controller, stack.pop_all()), storage=storage)


def attach(name: str, *, storage: str | None = None, address: str | None = None) -> RunHandle:
    """Returns a run from any process, while it is running and after it has ended.

    Example:
        handle = raydist.attach("cifar-20261121-093012-1f3a", storage="s3://bucket/runs")
        print(handle.status().state, handle.logs(task="worker/1"))

    Args:
      name: The run's name, a prefix that no other run has, or `@latest`.
      storage: Where runs are kept; the default is that of `run`.
      address: Ray that a detached run is in; None takes the one that it was submitted to.

    Raises:
      MistakeError: There is no such run, or several begin like that; the message gives the names.
      StorageError: Storage cannot be read.
    """
    from raydist.runs.attached import AttachedRun
    from raydist.storage.filesystem import Storage
    from raydist.storage.run_names import find_run

    uri = str(find_option("storage").default) if storage is None else storage
    opened = find_run(Storage.open(uri), name)
    home = AttachedRun(opened, address=address)
    home.status()  # a record that is damaged is told here
    return RunHandle(opened.run, home, storage=uri)


def _prepare(
    request: Request,
    stack: contextlib.ExitStack,
    *,
    called_at_s: float,
    tell: GuardedHook,
    packed: PackedJob | None = None,
) -> Controller:
    """Does first what a person may have to fix, then connects; `stack` closes what was opened.

    Args:
      packed: What has the code already, which may not be on this host; None packs it here.
    """
    job = request.job
    early_plan = _plan_for(request, this_machine()) if _will_be_embedded(job.address) else None
    folder = _open_folder(request)
    was_detached = folder.before is not None and folder.before.is_detached
    if not was_detached:
        _claim(folder, stack)
    if early_plan is None and not _is_connected():  # TensorFlow is imported while this process connects
        address = running_address() if job.address in (None, "auto") else job.address
        stack.enter_context(started_beside(_guess(request), address))
    if packed is not None:
        code, traced = packed.code, packed.traced
        trace: Callable[[], CodeRecord | None] = lambda: traced  # noqa: E731
    else:
        code = None if job.working_dir is None else pack(Path(job.working_dir))
        trace = stack.enter_context(traced_code(code, job))
    watcher = stack.enter_context(watched())  # closed last: what ends before may fail
    connection, plan = _connect(request, early_plan, stack, tell)
    plan = _with_size_note(plan, code)
    # They import ray, which a mistake told so far has not paid for.
    from raydist.runs.assembly import make_controller
    from raydist.runtime.detach.cluster_leftovers import swept_beside
    from raydist.runtime.detach.controller_actor import refuse_if_running
    from raydist.runtime.group.group import LaunchSpec
    from raydist.storage import own_runs
    from raydist.storage.claims import this_process
    from raydist.storage.run_storage import open_run

    if not connection.is_embedded:
        stack.enter_context(swept_beside())
    if job.resume:
        # Its controller may only be slow to write, or be brought back by Ray just now.
        refuse_if_running(job.name)
    if was_detached:
        _claim(folder, stack)
    events = stack.enter_context(folder.open_events())
    owner, driver = new_owner(), this_process()
    session = None if connection.session is None else str(connection.session)
    run = open_run(job.storage, run=job.name)
    own_runs.remember(run, addresses=(job.address, connection.address), driver=driver)
    stack.callback(own_runs.forget, run)
    watcher.begin(DrivenRun(name=job.name, storage=job.storage, owner=owner, driver=driver, session=session))
    launch = LaunchSpec(
        connection=connection,
        storage_uri=job.storage,
        run_uri=folder.uri,
        code=code,
        owner=owner,
        datasets=request.datasets or {},
        shows_output=job.entry_point.is_script and tell.has_listener,
    )
    controller = make_controller(
        plan,
        launch,
        folder,
        events,
        traced=trace(),
        driver=driver,
        tell=tell,
        tell_notes=tell.notes,
        ray_s=time.monotonic() - called_at_s,
    )
    tell.stop_by(controller.request_stop)
    return controller


def _guess(request: Request) -> Plan | None:
    """Returns what is probably going to be launched on a Ray that was not asked yet."""
    try:
        return _plan_for(request, this_machine())
    except RaydistError:  # this host alone cannot do it, or what is wrong is told in a moment
        return None


def _succeeded_before(request: Request, on_event: EventHook | None) -> RunResult | None:
    """Returns the result of the run where `resume="auto"` finds that it has succeeded already; else None."""
    job = request.job
    if job.resume != "auto":
        return None
    from raydist.storage.run_folder import RunFolder

    result = RunFolder.of(job).succeeded()
    if result is None:
        return None
    sentence = (
        f"run {job.name} has succeeded already, and nothing is trained again; to train it further use "
        "--resume alone, to train again another --name"
    )
    GuardedHook(on_event)({"event": "note", "at_s": time.time(), "message": sentence})
    return dataclasses.replace(result, notes=(*result.notes, sentence))


def _open_folder(request: Request) -> RunFolder:
    """Opens the run's folder, which nobody may hold now."""
    from raydist.storage.run_folder import RunFolder

    if request.job.mlflow is not None:
        from raydist.tracking.mlflow_client import check_tracking_uri

        check_tracking_uri(request.job.mlflow)
    folder = RunFolder.open(request.job)
    known = () if folder.before is None else folder.before.datasets
    check_resumed(request.job.name, request.datasets, before=known)
    folder.check_is_free()
    return folder


def _claim(folder: RunFolder, stack: contextlib.ExitStack) -> None:
    """Claims the run for this process, until `stack` is closed."""
    stack.callback(folder.release)
    folder.claim()


def _submit_detached(request: Request, *, called_at_s: float, on_event: EventHook | None) -> RunHandle:
    """Checks here all that can be, so that errors are shown at once, and gives the run to the cluster."""
    job, tell = request.job, GuardedHook(on_event)
    if _will_be_embedded(job.address) or _is_embedded_here():
        raise SpecError(_EMBEDDED_CANNOT_DETACH)
    folder = _open_folder(request)
    code = None if job.working_dir is None else pack(Path(job.working_dir))
    with contextlib.ExitStack() as stack:
        trace = stack.enter_context(traced_code(code, job))
        connection, plan = _connect(request, None, stack, tell)
        plan = _with_size_note(plan, code)
        from raydist.runs.assembly import planned_event
        from raydist.runs.detached import hand_over

        tell(planned_event(plan, ray=connection.source))
        submitted_at_s = time.time() - (time.monotonic() - called_at_s)
        try:
            hand_over(
                plan,
                code=code,
                traced=trace(),
                address=connection.address,
                submitted_at_s=submitted_at_s,
                datasets=serialize(request.datasets),
            )
        except SpecError:  # Ray knows the name only; the claim of one that was quicker says who it is
            with contextlib.suppress(StorageError):
                folder.check_is_free()
            raise
        return _attach_to_own(job, connection)


def _attach_to_own(job: JobSpec, connection: Connection) -> RunHandle:
    """Attaches to a run that was accepted, if its controller writes to the storage that is seen here."""
    from raydist.runtime.detach.controller_actor import request_stop

    try:
        handle = attach(job.name, storage=job.storage, address=connection.address)
        if handle.name != job.name:
            raise MistakeError(f"no run named {job.name}")
        return handle
    except MistakeError as error:
        request_stop(job.name)
        raise StorageError(
            f"storage is {redact(job.storage)!r}, which is another one on the host of the run's controller "
            "than here; give one that every host sees with --storage"
        ) from error


def _connect(
    request: Request, early_plan: Plan | None, stack: contextlib.ExitStack, tell: EventHook
) -> tuple[Connection, Plan]:
    """Connects to Ray. A cluster is asked before it is planned for; an embedded Ray is made to fit."""
    from raydist.runtime.cluster.inventory import probe_free, probe_inventory
    from raydist.runtime.cluster.placement import check_placeable
    from raydist.runtime.cluster.runtime_env import check_runtime_env

    check_runtime_env(request.job)
    check_placeable(request.job)
    plan: Plan | None = None
    ahead = stack.enter_context(contextlib.ExitStack())

    def embedded() -> EmbeddedSize:
        nonlocal plan
        plan = early_plan or _plan_for(request, this_machine())
        tell({"event": "ray", "message": f"starting an embedded Ray with {plan.embedded_cpus} logical CPUs"})
        ahead.enter_context(started_ahead(plan))  # TensorFlow is imported while Ray starts
        return EmbeddedSize(num_cpus=plan.embedded_cpus, resources=plan.embedded_resources)

    connection = stack.enter_context(connect(request.job.address, embedded=embedded))
    if connection.is_embedded:  # other runs of this process may use both for longer
        end_with_ray(ahead.pop_all().close)
    if plan is None:  # it shares the Ray of another run, or has joined one
        tell({"event": "ray", "message": connection.source})
        plan = _plan_for(request, probe_inventory(connection))
    if context() is not None:
        check_fits_beside(probe_free(connection), plan.all_roles)
    return connection, plan


def _plan_for(request: Request, inventory: Inventory) -> Plan:
    plan = make_plan(request.job, request.origins, inventory, source=request.source)
    return with_data_room(plan) if request.datasets else plan


def _with_size_note(plan: Plan, code: bytes | None) -> Plan:
    sentence = None if code is None else size_note(code)
    return plan if sentence is None else dataclasses.replace(plan, notes=(*plan.notes, sentence))


def _will_be_embedded(address: str | None) -> bool:
    """Whether `connect` is going to start a Ray, found without importing ray."""
    if _is_connected():
        return False
    return address == LOCAL or (address is None and running_address() is None)


def _is_embedded_here() -> bool:
    """Whether this process is connected to a Ray that it has started itself, by whichever ray.init."""
    if not _is_connected():
        return False
    from raydist.runtime.cluster.ray_internals import is_started_here

    return is_started_here()


def _is_connected() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and hasattr(ray, "is_initialized") and bool(ray.is_initialized())


def _pickle(function: object) -> bytes:
    from raydist.runtime.cluster.runtime_env import pickle_by_value

    return pickle_by_value(function)
