"""The one list of options: the command line, a config file's keys, the decorator's and run's keywords.

Each is declared here once, under its heading in the help; its default and its limits are JobSpec's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from raydist.errors import SpecError
from raydist.spec.best import check_keep_best
from raydist.spec.job import CheckpointEvery, KerasFlavour, PortRange, RunOn, Strategy, Success, WorkerRange
from raydist.spec.partitioner import FORMS, Partitioner
from raydist.spec.settings import roles, values
from raydist.spec.settings.option import Option, OptionKind
from raydist.spec.settings.removed import OF_ROLES, removed_option
from raydist.spec.shares import FORM, Shares
from raydist.spec.text import suggest


def _flag(name: str, summary: str) -> Option:
    return Option(name, values.boolean, summary, kind=OptionKind.FLAG)


def _switch(name: str, summary: str) -> Option:
    return Option(name, values.boolean, summary, kind=OptionKind.SWITCH)


GROUPS: Mapping[str, tuple[Option, ...]] = {
    "Run": (
        Option(
            "args",
            values.texts,
            "Arguments of a script, its sys.argv[1:]; they come last.",
            metavar="ARGS",
            kind=OptionKind.REST,
        ),
        Option(
            "name",
            values.text,
            "The run's name, its folder on storage; made from the job and the time when omitted.",
            metavar="NAME",
        ),
        Option(
            "study",
            values.optional(values.text, none="none"),
            "Name that runs which belong together share, for raydist list --study; none when omitted or "
            "none.",
            metavar="NAME",
        ),
        Option(
            "working_dir",
            values.optional(values.path),
            "Folder that is sent to each task and is first on its sys.path; "
            "the job file's folder when omitted.",
            metavar="DIR",
        ),
        Option(
            "storage",
            values.path,
            "Where runs are kept: a path, file://, s3://, gs:// or hdfs://.",
            metavar="URI",
        ),
        Option(
            "resume",
            values.boolean_or("auto"),
            "Continue the run of that name; with auto, start it if there is none.",
            kind=OptionKind.WORD,
        ),
        Option(
            "on_end",
            values.optional(values.text, none="none"),
            "Shell command to run after the run has ended, with RAYDIST_RUN, RAYDIST_STATE and "
            "RAYDIST_STORAGE set and the result's JSON on stdin; nothing when omitted or none.",
            metavar="COMMAND",
        ),
        Option(
            "mlflow",
            values.optional(values.tracking_uri, none="none"),
            "MLflow server to log the run to, such as http://host:5000; the experiment is named after "
            "the job. Needs raydist[mlflow]; nothing when omitted or none.",
        ),
        _flag("detach", "Return once the cluster has accepted the run, which outlives this shell."),
    ),
    "Cluster": (
        Option(
            "address",
            values.optional(values.address),
            "Ray cluster: local (embedded), auto, host:port or ray://host:port; when omitted, "
            "RAY_ADDRESS, else a Ray that runs on this machine, else local. plan takes described hosts too: "
            "simulated:hosts=1250,cpus=8,gpus=8,memory=64GiB.",
        ),
        Option(
            "ports",
            values.optional(values.written_as(PortRange, "LOW-HIGH, such as 20000-20099"), none="any"),
            "Ports that TensorFlow's servers may use; any free ones when omitted.",
            metavar="LOW-HIGH",
        ),
        _flag(
            "allow_public_ports",
            "Start TensorFlow's servers, which let anyone run code, also at public addresses.",
        ),
        _flag(
            "fence",
            "Set firewall rules (nft or iptables) that let only the run's hosts reach TensorFlow's "
            "servers; where the tasks may not, a note has the rule.",
        ),
        Option(
            "keep_warm",
            values.duration,
            "Time that hosts keep TensorFlow imported for the next run; 0 ends that with the run.",
        ),
    ),
    "Environment of the tasks": (
        Option(
            "env",
            values.variables,
            "Environment variable of every task; KEY alone takes the value that it has here. Can be "
            "repeated.",
            kind=OptionKind.REPEATED,
        ),
        Option(
            "env_file",
            values.optional(values.path, none="none"),
            "File of KEY=VALUE lines, environment variables of every task; none when omitted or none.",
            metavar="FILE",
        ),
        Option(
            "runtime_env",
            values.optional(values.runtime_env, none="none"),
            "YAML file with Ray's runtime environment of every task, such as pip, conda or image_uri; "
            "none when omitted or none.",
        ),
    ),
    "Strategy and roles": (
        Option(
            "strategy",
            values.choice(Strategy),
            f"The tf.distribute strategy: {', '.join(member.value for member in Strategy)}.",
            metavar="STRATEGY",
        ),
        Option(
            "workers",
            values.written_as(WorkerRange, "a number, or MIN:MAX such as 2:4", also=int),
            "Worker tasks.",
            metavar="N|MIN:MAX",
        ),
        Option("ps", values.whole_number, "Parameter server tasks."),
        _switch("evaluator", "Run a side-car task that evaluates each new checkpoint."),
        Option(
            "devices",
            values.optional(values.whole_number, none="auto"),
            "Logical CPU devices per task on hosts without GPUs; when omitted or auto, 2 for "
            "mirrored and central_storage.",
        ),
        Option(
            "virtual_replicas",
            values.optional(values.whole_number, none="none"),
            "Replicas of the run, divided among the workers, so that results do not depend on the number of "
            "workers; none: one for each device.",
            metavar="K",
        ),
        Option(
            "shares",
            values.optional(
                values.written_as(Shares, FORM, also=list | tuple, takes=Sequence[int]), none="equal"
            ),
            "What each worker takes of every global batch, such as 3,1 for a worker/0 that is three times as "
            "fast as worker/1. auto: by measured speeds; equal parts when omitted or equal.",
            metavar="N,N",
        ),
        Option(
            "run_on",
            values.choice(RunOn),
            "Which tasks run a script under parameter_server: the chief, or as TFJob does all.",
        ),
    ),
    "Resources and labels of the hosts": (
        Option(
            "resources",
            roles.resources,
            "CPUs, memory, GPUs and custom Ray resources of each task, by role.",
            kind=OptionKind.AMOUNTS,
        ),
        Option(
            "memory_retry",
            values.optional(values.factor, none="none"),
            "If a task runs out of memory, multiply the memory reserved for its role by this in the next "
            "attempt, such as 1.5x, if a host has that much; unchanged when omitted or none.",
        ),
        Option(
            "accelerator_type",
            values.optional(values.text, none="any"),
            "Kind of GPU of each worker's host, as Ray names it, such as A100; any when omitted or any.",
            metavar="TYPE",
        ),
        Option(
            "label_selector",
            values.label_selector,
            "Label that the tasks' hosts need to have, for all tasks or those of a role. VALUE may be "
            "!a, in(a,b) or !in(a,b). Can be repeated.",
            kind=OptionKind.REPEATED,
        ),
        Option(
            "roles",
            roles.extra_roles,
            "Commands that run alongside the training, such as a feature server, by the name of their role.",
            kind=OptionKind.MAPPING,
        ),
    ),
    "Model": (
        Option(
            "keras",
            values.choice(KerasFlavour),
            "What tf.keras is; auto is 3, unless the job's source imports tf_keras, or uses what only "
            "Keras 2 knows, or a partitioner is set.",
        ),
        _switch("patch_keras", "Patch the parts of Keras that fail under tf.distribute."),
        _switch(
            "check_equality",
            "Before the first step on several replicas, check the model's own losses (train_step, "
            "compute_loss, loss functions, add_loss). Losses that are means are then weighted so that the "
            "gradient equals one device's. When off, gradients are summed, as in TensorFlow.",
        ),
        _switch(
            "default_strategy",
            "Give a job that builds no strategy the run's for all that it makes, so that its models train on "
            "all workers.",
        ),
        _flag("sync_batchnorm", "BatchNormalization normalizes with the statistics of the global batch."),
        Option("seed", values.whole_number, "Seed of Python, NumPy, TensorFlow and Keras."),
        Option(
            "partitioner",
            values.optional(values.written_as(Partitioner, FORMS), none="none"),
            f"How parameter_server cuts large variables into shards: {FORMS}; "
            "not at all when omitted or none.",
            metavar="KIND:N[,KIND:N]",
        ),
    ),
    "Data": (
        Option(
            "auto_shard",
            values.one_of("off", "auto", "file", "data"),
            "tf.data auto-shard policy for plain pipelines.",
        ),
        Option(
            "data_workers",
            values.whole_number,
            "tf.data service tasks, which produce the datasets given to ctx.distribute.",
        ),
    ),
    "Communication": (
        Option(
            "collective",
            values.one_of("auto", "ring", "nccl"),
            "Implementation of collectives between workers under multi_worker_mirrored; nccl needs GPUs.",
        ),
        Option(
            "collective_timeout",
            values.optional(values.duration, none="none"),
            "Limit for a collective that not all workers have joined, under multi_worker_mirrored; "
            "no limit when omitted or none.",
        ),
        Option(
            "cross_device_ops",
            values.one_of("auto", "nccl", "hierarchical", "one_device"),
            "All-reduce implementation between the devices of mirrored; nccl needs GPUs.",
        ),
        Option(
            "compress_gradients",
            values.one_of("none", "fp16", "bf16"),
            "Type that gradients are rounded to before they are summed over replicas. Results then no "
            "longer equal one device's.",
        ),
    ),
    "Checkpoints and export": (
        Option(
            "checkpoint_every",
            values.written_as(CheckpointEvery, "100 (steps), epoch, 60s, or 5m", also=int),
            "When to save: every N steps, each epoch, or after a time such as 60s or 5m.",
            metavar="N|epoch|DURATION",
        ),
        Option(
            "keep",
            values.optional(values.whole_number, none="all"),
            "Checkpoints to keep, the newest ones; all keeps each.",
        ),
        Option(
            "keep_best",
            values.optional(values.Parser(check_keep_best, str), none="none"),
            "Also keep the best checkpoint of each ctx.fit by this metric, such as val_accuracy, and "
            "save each epoch. For a metric that is not one of Keras's write NAME:max or NAME:min; none when "
            "omitted.",
            metavar="METRIC",
        ),
        _switch("export", "Export the model of ctx.fit at its end, the best one with keep_best."),
    ),
    "What is recorded": (
        _flag(
            "log_device_placement",
            "Print the device of each op to the task's log (tf.debugging.set_log_device_placement).",
        ),
    ),
    "Failures and time limits (a DURATION is seconds, or 90s, 5m, 2h)": (
        Option(
            "max_failures", values.whole_number, "Attempts that may be lost to failures before the run fails."
        ),
        Option(
            "standby",
            values.whole_number,
            "Agents that wait on other hosts, TensorFlow imported, for the tasks of a lost host.",
        ),
        Option(
            "success",
            values.choice(Success),
            "Which tasks that train have to return: all, or the chief, which ends the others.",
        ),
        Option(
            "timeout",
            values.optional(values.duration, none="none"),
            "Time limit for the whole run, which then saves and ends with exit code 124; none sets no limit.",
        ),
        Option("start_timeout", values.duration, "Time limit for starting an attempt."),
        Option(
            "stall_timeout",
            values.duration,
            "Time without a completed step after which the stacks are dumped and a new attempt starts.",
        ),
        _flag("stop_on_nan", "End the run once a reported value is NaN or infinite."),
    ),
}
OPTIONS = tuple(option for options in GROUPS.values() for option in options)

PARAMS = "params"
_BY_NAME = {option.name: option for option in OPTIONS}


def find_option(name: str, *, where: str = "") -> Option:
    """Returns the option of that name; raises SpecError that names the near ones."""
    check_names([name], where=where)
    return _BY_NAME[name]


def check_names(names: Iterable[str], *, where: str = "") -> None:
    """Raises SpecError for the first name that is neither an option nor `params`."""
    for name in names:
        if name not in _BY_NAME and name != PARAMS and name not in OF_ROLES:
            prefix = f"{where}: " if where else ""
            near = suggest(str(name), [*_BY_NAME, PARAMS])
            if name in roles.AMOUNTS:
                near = f"write it in resources, such as {roles.EXAMPLE}"
            told = f"there is no option {name!r}; {near}"
            raise SpecError(f"{prefix}{removed_option(name) or told}")
