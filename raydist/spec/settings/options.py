"""The one list of options: the command line, a config file's keys, the decorator's and run's keywords."""

from __future__ import annotations

from collections.abc import Iterable

from raydist.errors import SpecError
from raydist.spec.best import check_keep_best
from raydist.spec.job import CheckpointEvery, KerasFlavour, PortRange, RunOn, Strategy, WorkerRange
from raydist.spec.partitioner import FORMS, Partitioner
from raydist.spec.settings import values
from raydist.spec.settings.option import Option, OptionKind
from raydist.spec.settings.values import roles
from raydist.spec.text import suggest

# Those that a resource can be asked for.
_ROLES = ("worker", "ps", "chief", "evaluator", "data_worker")


def _cpus(role: str) -> Option:
    return Option(
        name=f"cpus_per_{role}",
        metavar="N",
        summary=f"Logical CPUs of each {role.replace('_', ' ')} task.",
        parser=values.number,
    )


def _memory(role: str) -> Option:
    return Option(
        name=f"memory_per_{role}",
        metavar="SIZE",
        summary=f"Memory that each {role.replace('_', ' ')} task reserves, such as 8GiB; none when omitted "
        "or none.",
        parser=values.optional(values.byte_size, none="none"),
    )


def _resources(role: str) -> Option:
    return Option(
        name=f"resources_per_{role}",
        metavar="KEY=N",
        summary=f"Custom Ray resource that each {role.replace('_', ' ')} task reserves. Can be repeated.",
        parser=values.amounts,
        kind=OptionKind.REPEATED,
    )


OPTIONS: tuple[Option, ...] = (
    Option(
        name="name",
        metavar="NAME",
        summary="The run's name, its folder on storage; made from the job and the time when omitted.",
        parser=values.text,
    ),
    Option(
        name="study",
        metavar="NAME",
        summary="Name that runs which belong together share, for raydist list --study; none when omitted or "
        "none.",
        parser=values.optional(values.text, none="none"),
    ),
    Option(
        name="args",
        metavar="ARGS",
        summary="Arguments of a script, its sys.argv[1:]; they come last.",
        parser=values.texts,
        kind=OptionKind.REST,
    ),
    Option(
        name="run_on",
        metavar="|".join(member.value for member in RunOn),
        summary="Which tasks run a script under parameter_server: the chief, or as TFJob does all.",
        parser=values.choice(RunOn),
    ),
    Option(
        name="working_dir",
        metavar="DIR",
        summary="Folder that is sent to each task and is first on its sys.path; "
        "the job file's folder when omitted.",
        parser=values.optional(values.path),
    ),
    Option(
        name="env",
        metavar="KEY=VALUE",
        summary="Environment variable of every task; KEY alone takes the value that it has here. Can be "
        "repeated.",
        parser=values.variables,
        kind=OptionKind.REPEATED,
    ),
    Option(
        name="env_file",
        metavar="FILE",
        summary="File of KEY=VALUE lines, environment variables of every task; none when omitted or none.",
        parser=values.optional(values.path, none="none"),
    ),
    Option(
        name="runtime_env",
        metavar="FILE",
        summary="YAML file with Ray's runtime environment of every task, such as pip, conda or image_uri; "
        "none when omitted or none.",
        parser=values.optional(values.runtime_env, none="none"),
    ),
    Option(
        name="address",
        metavar="ADDRESS",
        summary="Ray cluster: local (embedded), auto, host:port or ray://host:port; when omitted, "
        "RAY_ADDRESS, else a Ray that runs on this machine, else local. plan takes described hosts too: "
        "simulated:hosts=1250,cpus=8,gpus=8,memory=64GiB.",
        parser=values.optional(values.address),
    ),
    Option(
        name="strategy",
        metavar="STRATEGY",
        summary=f"The tf.distribute strategy: {', '.join(member.value for member in Strategy)}.",
        parser=values.choice(Strategy),
    ),
    Option(
        name="workers",
        metavar="N|MIN:MAX",
        summary="Worker tasks.",
        parser=values.written_as(WorkerRange, "a number, or MIN:MAX such as 2:4", also=int),
    ),
    Option(name="ps", metavar="N", summary="Parameter server tasks.", parser=values.whole_number),
    Option(
        name="evaluator",
        metavar="",
        summary="Run a side-car task that evaluates each new checkpoint.",
        parser=values.boolean,
        kind=OptionKind.SWITCH,
    ),
    Option(
        name="data_workers",
        metavar="N",
        summary="tf.data service tasks, which produce the datasets given to ctx.distribute.",
        parser=values.whole_number,
    ),
    *map(_cpus, _ROLES),
    *map(_memory, _ROLES),
    Option(
        name="memory_retry",
        metavar="FACTOR",
        summary="If a task runs out of memory, multiply the memory reserved for its role by this in the next "
        "attempt, such as 1.5x, if a host has that much; unchanged when omitted or none.",
        parser=values.optional(values.factor, none="none"),
    ),
    *map(_resources, _ROLES),
    Option(
        name="accelerator_type",
        metavar="TYPE",
        summary="Kind of GPU of each worker's host, as Ray names it, such as A100; any when omitted or any.",
        parser=values.optional(values.text, none="any"),
    ),
    Option(
        name="label_selector",
        metavar="[ROLE:]KEY=VALUE",
        summary="Label that the tasks' hosts need to have, for all tasks or those of a role. VALUE may be "
        "!a, in(a,b) or !in(a,b). Can be repeated.",
        parser=values.label_selector,
        kind=OptionKind.REPEATED,
    ),
    Option(
        name="roles",
        metavar="",
        summary="Commands that run beside the training, such as a feature server, by the name of their role.",
        parser=roles,
        kind=OptionKind.MAPPING,
    ),
    Option(
        name="gpus_per_worker",
        metavar="N",
        summary="GPUs of each worker; chosen by what the hosts have when omitted or auto.",
        parser=values.optional(values.whole_number, none="auto"),
    ),
    Option(
        name="gpus_per_evaluator",
        metavar="N",
        summary="GPUs of the evaluator, which uses all of them; none when omitted.",
        parser=values.whole_number,
    ),
    Option(
        name="devices",
        metavar="N",
        summary="Logical CPU devices per task on hosts without GPUs; when omitted or auto, 2 for "
        "mirrored and central_storage.",
        parser=values.optional(values.whole_number, none="auto"),
    ),
    Option(
        name="virtual_replicas",
        metavar="K",
        summary="Replicas of the run, computed by whatever workers there are, so that results do not depend "
        "on their number; none: one for each device.",
        parser=values.optional(values.whole_number, none="none"),
    ),
    Option(
        name="threads_per_replica",
        metavar="N",
        summary="Threads that compute an operation of a virtual replica; results depend on it.",
        parser=values.whole_number,
    ),
    Option(
        name="reduce_order",
        metavar="ORDER",
        summary="How virtual replicas' values are added: fixed gives the same bits for any number of "
        "workers, any uses TensorFlow's all-reduce between workers.",
        parser=values.one_of("fixed", "any"),
    ),
    Option(
        name="ports",
        metavar="LOW-HIGH",
        summary="Ports that TensorFlow's servers may use; any free ones when omitted.",
        parser=values.optional(values.written_as(PortRange, "LOW-HIGH, such as 20000-20099"), none="any"),
    ),
    Option(
        name="allow_public_ports",
        metavar="",
        summary="Start TensorFlow's servers, which let anyone run code, also at public addresses.",
        parser=values.boolean,
        kind=OptionKind.FLAG,
    ),
    Option(
        name="fence",
        metavar="",
        summary="Set firewall rules (nft or iptables) that let only the run's hosts reach TensorFlow's "
        "servers; where the tasks may not, a note has the rule.",
        parser=values.boolean,
        kind=OptionKind.FLAG,
    ),
    Option(
        name="keras",
        metavar="|".join(member.value for member in KerasFlavour),
        summary="What tf.keras is; auto is 3, unless the job's source imports tf_keras, or uses what only "
        "Keras 2 knows, or a partitioner is set.",
        parser=values.choice(KerasFlavour),
    ),
    Option(
        name="patch_keras",
        metavar="",
        summary="Patch the parts of Keras that fail under tf.distribute.",
        parser=values.boolean,
        kind=OptionKind.SWITCH,
    ),
    Option(
        name="check_equality",
        metavar="",
        summary="Before the first step on several replicas, check the model's own losses (train_step, "
        "compute_loss, loss functions, add_loss). Losses that are means are then weighted so that the "
        "gradient equals one device's. When off, gradients are summed, as in TensorFlow.",
        parser=values.boolean,
        kind=OptionKind.SWITCH,
    ),
    Option(
        name="sync_batchnorm",
        metavar="",
        summary="BatchNormalization normalizes with the statistics of the global batch.",
        parser=values.boolean,
        kind=OptionKind.FLAG,
    ),
    Option(
        name="sum_embedding_rows",
        metavar="",
        summary="Sum the rows of an embedding that a batch looks up several times before Keras 3's "
        "optimizers get them, as tf_keras does. Keras 3 by itself takes each lookup for a gradient.",
        parser=values.boolean,
        kind=OptionKind.FLAG,
    ),
    Option(
        name="seed",
        metavar="N",
        summary="Seed of Python, NumPy, TensorFlow and Keras.",
        parser=values.whole_number,
    ),
    Option(
        name="storage",
        metavar="URI",
        summary="Where runs are kept: a path, file://, s3://, gs:// or hdfs://.",
        parser=values.path,
    ),
    Option(
        name="max_failures",
        metavar="N",
        summary="Attempts that may be lost to failures before the run fails.",
        parser=values.whole_number,
    ),
    Option(
        name="timeout",
        metavar="DURATION",
        summary="Time limit for the whole run; no limit when omitted or none.",
        parser=values.optional(values.duration, none="none"),
    ),
    Option(
        name="start_timeout",
        metavar="DURATION",
        summary="Time limit for starting an attempt.",
        parser=values.duration,
    ),
    Option(
        name="stall_timeout",
        metavar="DURATION",
        summary="Time without a completed step after which the stacks are dumped and a new attempt starts.",
        parser=values.duration,
    ),
    Option(
        name="keep_warm",
        metavar="DURATION",
        summary="Time that hosts keep TensorFlow imported for the next run; 0 ends that with the run.",
        parser=values.duration,
    ),
    Option(
        name="standby",
        metavar="N",
        summary="Agents that wait on other hosts, TensorFlow imported, for the tasks of a lost host.",
        parser=values.whole_number,
    ),
    Option(
        name="survivor_memory",
        metavar="SIZE",
        summary="Memory for the chief's state, from which a new attempt goes on; 0 for none.",
        parser=values.byte_size,
    ),
    Option(
        name="stop_on_nan",
        metavar="",
        summary="End the run once a reported value is NaN or infinite.",
        parser=values.boolean,
        kind=OptionKind.FLAG,
    ),
    Option(
        name="resume",
        metavar="auto",
        summary="Continue the run of that name; with auto, start it if there is none.",
        parser=values.boolean_or("auto"),
        kind=OptionKind.WORD,
    ),
    Option(
        name="checkpoint_every",
        metavar="N|epoch|DURATION",
        summary="When to save: every N steps, each epoch, or after a time such as 60s or 5m.",
        parser=values.written_as(CheckpointEvery, "100 (steps), epoch, 60s, or 5m", also=int),
    ),
    Option(
        name="keep",
        metavar="N",
        summary="Checkpoints to keep, the newest ones; all keeps each.",
        parser=values.optional(values.whole_number, none="all"),
    ),
    Option(
        name="keep_best",
        metavar="METRIC",
        summary="Also keep the best checkpoint of each ctx.fit by this metric, such as val_accuracy, and "
        "save each epoch. For a metric that is not one of Keras's write NAME:max or NAME:min; none when "
        "omitted.",
        parser=values.optional(values.Parser(check_keep_best, str), none="none"),
    ),
    Option(
        name="export",
        metavar="",
        summary="Export the model of ctx.fit at its end, the best one with keep_best.",
        parser=values.boolean,
        kind=OptionKind.SWITCH,
    ),
    Option(
        name="partitioner",
        metavar="KIND:N[,KIND:N]",
        summary=f"How parameter_server cuts large variables into shards: {FORMS}; "
        "not at all when omitted or none.",
        parser=values.optional(values.written_as(Partitioner, FORMS), none="none"),
    ),
    Option(
        name="ps_staleness",
        metavar="K",
        summary="Under parameter_server, let a worker read the weights once for K + 1 steps; 0 reads them in "
        "each step.",
        parser=values.whole_number,
    ),
    Option(
        name="auto_shard",
        metavar="off|auto|file|data",
        summary="tf.data auto-shard policy for plain pipelines.",
        parser=values.one_of("off", "auto", "file", "data"),
    ),
    Option(
        name="collective",
        metavar="auto|ring|nccl",
        summary="Implementation of collectives between workers under multi_worker_mirrored; nccl needs GPUs.",
        parser=values.one_of("auto", "ring", "nccl"),
    ),
    Option(
        name="collective_timeout",
        metavar="DURATION",
        summary="Limit for a collective that not all workers have joined, under multi_worker_mirrored; "
        "no limit when omitted or none.",
        parser=values.optional(values.duration, none="none"),
    ),
    Option(
        name="bytes_per_pack",
        metavar="SIZE",
        summary="Reduces gradients in packs of about this size, such as 32MiB, under multi_worker_mirrored; "
        "all as one when omitted or none.",
        parser=values.optional(values.byte_size, none="none"),
    ),
    Option(
        name="cross_device_ops",
        metavar="auto|nccl|hierarchical|one_device",
        summary="All-reduce implementation between the devices of mirrored; nccl needs GPUs.",
        parser=values.one_of("auto", "nccl", "hierarchical", "one_device"),
    ),
    Option(
        name="compress_gradients",
        metavar="none|fp16|bf16",
        summary="Type that gradients are rounded to before they are summed over replicas. Results then no "
        "longer equal one device's.",
        parser=values.one_of("none", "fp16", "bf16"),
    ),
    Option(
        name="tensorboard_histograms",
        metavar="EPOCHS",
        summary="Write histograms of the weights for TensorBoard every this many epochs of a fit; never when "
        "omitted or none.",
        parser=values.optional(values.whole_number, none="none"),
    ),
    Option(
        name="tensorboard_graph",
        metavar="",
        summary="Write the layers of the model of the first fit for TensorBoard's graph page.",
        parser=values.boolean,
        kind=OptionKind.FLAG,
    ),
    Option(
        name="log_device_placement",
        metavar="",
        summary="Print the device of each op to the task's log (tf.debugging.set_log_device_placement).",
        parser=values.boolean,
        kind=OptionKind.FLAG,
    ),
    Option(
        name="dump_xla",
        metavar="",
        summary="Keep what XLA compiles in the tasks that run the job, in the run's folder xla/.",
        parser=values.boolean,
        kind=OptionKind.FLAG,
    ),
    Option(
        name="on_end",
        metavar="COMMAND",
        summary="Shell command to run after the run has ended, with RAYDIST_RUN, RAYDIST_STATE and "
        "RAYDIST_STORAGE set and the result's JSON on stdin; nothing when omitted or none.",
        parser=values.optional(values.text, none="none"),
    ),
    Option(
        name="mlflow",
        metavar="URI",
        summary="MLflow server to log the run to, such as http://host:5000; the experiment is named after "
        "the job. Needs raydist[mlflow]; nothing when omitted or none.",
        parser=values.optional(values.tracking_uri, none="none"),
    ),
    Option(
        name="keep_runs",
        metavar="AGE",
        summary="At the end of the run, delete the runs of its storage that have ended and were last written "
        "longer ago than this, such as 30d; none when omitted or none.",
        parser=values.optional(values.age, none="none"),
    ),
    Option(
        name="detach",
        metavar="",
        summary="Return once the cluster has accepted the run, which outlives this shell.",
        parser=values.boolean,
        kind=OptionKind.FLAG,
    ),
)

PARAMS = "params"
_BY_NAME = {option.name: option for option in OPTIONS}


def find_option(name: str, *, where: str = "") -> Option:
    """Returns the option of that name; raises SpecError that names the near ones."""
    check_names([name], where=where)
    return _BY_NAME[name]


def check_names(names: Iterable[str], *, where: str = "") -> None:
    """Raises SpecError for the first name that is neither an option nor `params`."""
    for name in names:
        if name not in _BY_NAME and name != PARAMS:
            prefix = f"{where}: " if where else ""
            raise SpecError(f"{prefix}there is no option {name!r}; {suggest(str(name), [*_BY_NAME, PARAMS])}")
