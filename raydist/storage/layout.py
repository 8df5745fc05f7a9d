"""RunLayout: every path name of a run on storage; RunStorage has them too."""

from __future__ import annotations

import re

from raydist.errors import SpecError
from raydist.spec.tasks import AnyTask, TaskId, parse_any_task

_CHECKPOINT_PATTERN = re.compile(r"step-(\d+)-a(\d+)")
_COMMIT_MARKER = "_COMMITTED"
_METRICS_PATTERN = re.compile(r"\d+-(.+)-(\d+)-\d+\.parquet")
_CLAIM_PATTERN = re.compile(r"(\d+)\.json")
# The folder of the claims, below that of the run.
CLAIMS = "claims"
_EVENTS = "events"
_WORKING_FILES = "working_dir"
_EARLIER_FILES = "earlier_attempts"
_KEPT_CODES = "code"
_TOKEN = "token"
_LOGS = "logs"
_METRICS = "metrics"
_TENSORBOARD = "tensorboard"
# Where a disk is full, a task may write before run.json can be.
_BEFORE_RECORD = (CLAIMS, _EVENTS, _KEPT_CODES, _TOKEN, _LOGS, _METRICS, _TENSORBOARD)
_CODE_PATTERN = re.compile(r"code-[^/]+\.zip")
# One empty file for each run of the storage, whose name begins with the time of creation: a listing of this
# folder orders the runs without reading their records. No run has such a name.
INDEX = ".runs"
# One folder for each search, with what it is and Tune's own state. No run has such a name.
STUDIES = ".studies"
_INDEX_PATTERN = re.compile(r"(\d{14})-(.+)")
# At most one log segment in 5 s, or of 4 MB, is written: no process gets that far.
_LOG_SEGMENTS_PER_INCARNATION = 1_000_000


class RunLayout:
    """Path names of one run. All are keys relative to the storage root, with `/` between parts.

    Attributes:
      run: The run's name, which is its folder.
      claims: Who drives the run, and who did before: one file for each submit and resume.
      contenders: Where processes agree who claims the run, on storage that cannot create a file exclusively.
      kept_codes: The copies of the code that stay: one for each different code that was submitted.
      token: What each host of an attempt reads before anything starts, and the chief before each
        checkpoint (StorageProof).
      evaluations: What the evaluator found for the checkpoints, with --keep-best.
      profile_mail: Requests for profiles and their answers, while somebody waits for them.
      mlflow: Which run of MLflow stands for this one, and what it has been told.
      output: What the tasks have written into their ctx.output_dir, the chief's at its top.
      working_files: What the chief has written into its working folder.
      earlier_files: What it has written there in earlier attempts, and not in the last one.
    """

    def __init__(self, *, run: str) -> None:
        self.run = run
        self.record = f"{run}/run.json"
        self.claims = f"{run}/{CLAIMS}"
        self.contenders = f"{self.claims}/contenders"
        self.kept_codes = f"{run}/{_KEPT_CODES}"
        self.token = f"{run}/{_TOKEN}"
        self.events = f"{run}/{_EVENTS}"
        self.logs = f"{run}/{_LOGS}"
        self.metrics = f"{run}/{_METRICS}"
        self.checkpoints = f"{run}/checkpoints"
        self.evaluations = f"{run}/evaluations.json"
        self.tensorboard = f"{run}/{_TENSORBOARD}"
        self.profile_mail = f"{run}/profiles"
        self.mlflow = f"{run}/mlflow.json"
        self.output = f"{run}/output"
        self.working_files = f"{self.output}/{_WORKING_FILES}"
        self.earlier_files = f"{self.output}/{_EARLIER_FILES}"
        self.export = f"{run}/export"
        self.exported_model = f"{self.export}/model.keras"
        self.exported_saved_model = f"{self.export}/saved_model"

    def index_entry(self, created_at_s: float) -> str:
        return f"{INDEX}/{int(1000 * created_at_s):014d}-{self.run}"

    @staticmethod
    def parse_index_entry(name: str) -> tuple[float, str] | None:
        """Returns the time of creation and the run of an entry's file name, or None for any other name."""
        match = _INDEX_PATTERN.fullmatch(name)
        return (int(match[1]) / 1000, match[2]) if match else None

    @staticmethod
    def may_precede_record(name: str) -> bool:
        """Whether that file or folder of a run's folder may be there before run.json is."""
        return name in _BEFORE_RECORD or _CODE_PATTERN.fullmatch(name) is not None

    def claim(self, number: int) -> str:
        return f"{self.claims}/{number:06d}.json"

    @staticmethod
    def parse_claim(name: str) -> int | None:
        """Returns the number of a claim's file name, or None for any other name."""
        match = _CLAIM_PATTERN.fullmatch(name)
        return int(match[1]) if match else None

    def contender(self, name: str) -> str:
        return f"{self.contenders}/{name}"

    def code(self, owner: str) -> str:
        """A detached run's working directory, while it is running; `owner` marks the submit it came with."""
        return f"{self.run}/code-{owner}.zip"

    def kept_code(self, digest: str) -> str:
        return f"{self.kept_codes}/{digest}.zip"

    def event_segment(self, seq: int) -> str:
        return f"{self.events}/{seq:06d}.jsonl"

    def task_logs(self, task: AnyTask, *, attempt: int) -> str:
        return f"{self.logs}/{attempt}/{task.path_name}"

    def log_segment(self, task: AnyTask, *, attempt: int, seq: int) -> str:
        return f"{self.task_logs(task, attempt=attempt)}/{seq:06d}.log"

    def log_times(self, task: AnyTask, *, attempt: int, seq: int) -> str:
        """When the bytes of a log segment arrived (raydist.storage.log_times)."""
        return f"{self.events}/logs/{attempt}/{task.path_name}/{seq:06d}.json"

    @staticmethod
    def first_log_seq(incarnation: int) -> int:
        """Returns where the log of a task's process number `incarnation` in an attempt begins.

        The log of the process before may still be stored while it does.
        """
        return incarnation * _LOG_SEGMENTS_PER_INCARNATION

    @staticmethod
    def parse_task(path_name: str) -> AnyTask | None:
        """Returns the task that a folder name such as `worker-0` stands for, or None for any other name."""
        task_type, _, index = path_name.rpartition("-")
        try:
            return parse_any_task(f"{task_type}/{index}")
        except SpecError:
            return None

    @staticmethod
    def metrics_prefix(task: TaskId, *, attempt: int) -> str:
        """What the names of one task's metrics files begin with; their `seq` follows."""
        return f"{attempt}-{task.path_name}-"

    def metrics_segment(self, task: TaskId, *, attempt: int, seq: int) -> str:
        return f"{self.metrics}/{self.metrics_prefix(task, attempt=attempt)}{seq:06d}.parquet"

    @staticmethod
    def parse_metrics(name: str) -> TaskId | None:
        """Returns the task whose metrics a file has, by its name, or None for any other name."""
        match = _METRICS_PATTERN.fullmatch(name)
        try:
            return TaskId.parse(f"{match[1]}/{match[2]}") if match else None
        except SpecError:
            return None

    @staticmethod
    def parse_seq(name: str, *, prefix: str = "") -> int | None:
        """Returns the number of a segment's file name, or None where `name` is none with that prefix."""
        match = re.fullmatch(rf"{re.escape(prefix)}(\d+)\.[a-z]+", name)
        return int(match[1]) if match else None

    def checkpoint(self, *, step: int, attempt: int) -> str:
        """The attempt in the name fences off a chief that was cut away and comes back."""
        return f"{self.checkpoints}/step-{step}-a{attempt}"

    def checkpoint_marker(self, *, step: int, attempt: int) -> str:
        return f"{self.checkpoint(step=step, attempt=attempt)}/{_COMMIT_MARKER}"

    def verification(self, name: str) -> str:
        """A storage of its own, with the runs that `raydist reproduce --verify` repeats this one by."""
        return f"{self.run}/verify/{name}"

    @staticmethod
    def parse_checkpoint(name: str) -> tuple[int, int] | None:
        """Returns (step, attempt) of a checkpoint folder's name, or None for any other name."""
        match = _CHECKPOINT_PATTERN.fullmatch(name)
        return (int(match[1]), int(match[2])) if match else None

    def tensorboard_folder(self, name: str) -> str:
        """What TensorBoard shows as one run, `chief/train`; what holds them all where `name` is empty."""
        return f"{self.tensorboard}/{name}" if name else self.tensorboard

    @staticmethod
    def tensorboard_prefix(*, attempt: int) -> str:
        """What the names of an attempt's event files begin with; TensorBoard reads them in order of name."""
        return f"events.out.tfevents.{attempt:06d}-"

    def tensorboard_segment(self, folder: str, *, attempt: int, seq: int) -> str:
        prefix = self.tensorboard_prefix(attempt=attempt)
        return f"{self.tensorboard_folder(folder)}/{prefix}{seq:06d}.raydist"

    def tensorboard_task(self, task: TaskId) -> str:
        """The profiles of a task, where TensorBoard's profile plugin looks for them."""
        return self.tensorboard_folder(task.path_name)

    def task_profile_mail(self, task: TaskId) -> str:
        return f"{self.profile_mail}/{task.path_name}"

    def task_output(self, task: AnyTask, *, is_chief: bool) -> str:
        return self.output if is_chief else f"{self.output}/{task.path_name}"

    @staticmethod
    def is_chief_output(name: str) -> bool:
        """Whether a file's name below `output` is one of the chief's ctx.output_dir."""
        top, slash, _ = name.partition("/")
        task_type, _, index = top.rpartition("-")
        try:
            TaskId.parse(f"{task_type}/{index}")
        except SpecError:
            return not slash or top not in (_WORKING_FILES, _EARLIER_FILES)
        return not slash
