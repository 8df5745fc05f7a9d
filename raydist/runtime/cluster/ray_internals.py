"""Everything that raydist uses of Ray besides its public API; tests/compat runs it with Ray 2.46 to 2.60.

Each function says what it takes from Ray and why the public API cannot do it, and works without it where a
version has no such part. `missing_parts` returns what is lost then.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import json
import logging
import os
import pkgutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import ray
from ray.exceptions import RayError

from raydist.errors import ClusterError

logger = logging.getLogger(__name__)

# What is taken from Ray, `module:name`, and what raydist cannot do without it.
_CHANNEL = "ray._private.gcs_utils:create_gcs_channel"
_TOKENS = "ray._raylet:AuthenticationTokenLoader"
_CONFIG = "ray._raylet:Config"
_GCS_CLIENT = "ray._raylet:GcsClient"
_PROCESSES = "ray._private.services:_find_address_from_flag"
_GCS_PROCESSES = "ray._private.services:find_gcs_addresses"
_STDOUT = "ray._private.worker:print_to_stdstream"
_NODE = "ray._private.worker:_global_node"
_FREE = "ray._private.state:available_resources_per_node"
_STATE = "ray._private.state:state"
_AUTO_INIT = "ray._private.auto_init_hook:enable_auto_connect"
_KEY_VALUES = "ray.experimental.internal_kv:_internal_kv_get"
_LOST = {
    _CHANNEL: "a wrong address or token is reported only after Ray's own time-outs",
    _TOKENS: "token authentication (Ray 2.52 or later); a cluster that demands a token cannot be joined",
    _CONFIG: "RAY_AUTH_MODE cannot be changed after Ray is imported",
    _GCS_CLIENT: "a driver on a machine that is not a node of the cluster is reported only after a minute",
    _PROCESSES: "a driver on a machine that is not a node of the cluster is reported only after a minute",
    _GCS_PROCESSES: "--address auto finds only a Ray that left its address file",
    _STDOUT: "Ray's own messages of dead processes appear on stdout, also with --json",
    _NODE: "embedded Rays: start one with `ray start --head` and give --address auto",
    _FREE: "hosts that are busy are taken for free ones when tasks are placed",
    _STATE: "tasks may be placed on nodes that are about to be drained; a stop at a start may leave folders",
    _AUTO_INIT: "a run whose embedded Ray was ended may start another one while it stops",
    _KEY_VALUES: "an autoscaling cluster is not recognized: what does not fit is refused, not waited for",
}

_GET_CLUSTER_ID = "/ray.rpc.NodeInfoGcsService/GetClusterId"
_CLIENT_CLUSTER_INFO = "/ray.rpc.RayletDriver/ClusterInfo"
_AUTOSCALER_STATUS = "__autoscaling_status"
_READ_ONLY_NODE_TYPE = "node_"


def _part(name: str) -> Any:
    """Returns one of `_LOST`; None where this Ray has no such. Variables are read again each time."""
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return None


def missing_parts() -> list[str]:
    """Returns what raydist cannot do with the installed Ray, one sentence for each part that it lacks."""
    gone = [name for name in _LOST if name != _NODE and _part(name) is None]
    if not hasattr(importlib.import_module("ray._private.worker"), "_global_node"):
        gone.append(_NODE)  # None before ray.init
    lost = [f"Ray {ray.__version__} has no {name.replace(':', '.')}: {_LOST[name]}" for name in gone]
    if not can_select_nodes():
        lost.append(
            f"Ray {ray.__version__} takes no bundle_label_selector (2.47 or later): --label-selector is "
            "refused, and a new attempt may be placed on the node that failed before"
        )
    return lost


def can_select_nodes() -> bool:
    """Whether a placement group can be kept to nodes by their labels, or away from them; not by Ray 2.46."""
    return "bundle_label_selector" in inspect.signature(ray.util.placement_group).parameters


class Listener(enum.Enum):
    """What listens at an address."""

    RAY = "RAY"
    UNAUTHENTICATED = "UNAUTHENTICATED"  # Ray, but not with this token
    OTHER = "OTHER"  # nothing, or no Ray


def reload_authentication() -> None:
    """Makes Ray read RAY_AUTH_MODE and the token again.

    `import ray` has read them into C++ caches, and ray.init does so only for addresses that it
    found by itself (authentication_token_setup.py does just this).
    """
    config, tokens = _part(_CONFIG), _part(_TOKENS)
    if tokens is not None and config is not None:
        config.initialize("")
        tokens.instance().reset_cache()


def has_token() -> bool:
    """Whether there is a token, by RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or the default file.

    Ray's own search. Connecting in token mode without a token aborts the process in C++. What it finds is
    forgotten again: with a token in its cache, this process would refuse the calls of a Ray that has no
    authentication, and each actor would die as if its driver were gone.
    """
    tokens = _part(_TOKENS)
    if tokens is None:
        return False  # before Ray 2.52, which sends none
    try:
        return bool(tokens.instance().has_token(ignore_auth_mode=True))
    except TypeError:
        return _finds_token()  # Ray 2.52 looks for one in token mode only
    except RayError:
        return False  # RAY_AUTH_TOKEN_PATH names a file that cannot be read
    finally:
        tokens.instance().reset_cache()


def _finds_token() -> bool:
    path = os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token"
    try:
        return bool(os.environ.get("RAY_AUTH_TOKEN") or Path(path).read_text().strip())
    except OSError:
        return False


def ask_gcs(address: str, *, timeout_s: float) -> Listener:
    """Asks for the cluster's id, one call on a channel as Ray makes them (TLS, token, no proxy).

    ray.init hangs for a minute on a port where Ray does not listen, and retries a wrong token for 20 s.
    """
    return _answer(address, _GET_CLUSTER_ID, b"", timeout_s=timeout_s)


def ask_client_server(address: str, *, timeout_s: float) -> Listener:
    """The same for a `ray://` address, by the ping with which Ray's own client begins."""
    from ray.core.generated import ray_client_pb2

    messages: Any = ray_client_pb2
    ping = messages.ClusterInfoRequest(type=messages.ClusterInfoType.PING)
    return _answer(address, _CLIENT_CLUSTER_INFO, ping.SerializeToString(), timeout_s=timeout_s)


def _answer(address: str, method: str, request: bytes, *, timeout_s: float) -> Listener:
    create_channel = _part(_CHANNEL)
    if create_channel is None:
        return Listener.RAY  # ray.init will find out
    channel = create_channel(address)
    try:
        channel.unary_unary(method)(request, timeout=timeout_s)
    except grpc.RpcError as error:
        is_refused = error.code() is grpc.StatusCode.UNAUTHENTICATED
        return Listener.UNAUTHENTICATED if is_refused else Listener.OTHER
    finally:
        channel.close()
    return Listener.RAY


def has_node_here(gcs_address: str, *, timeout_s: float) -> bool:
    """Whether a raylet of that cluster runs on this host; ray.init looks for one for a minute."""
    find_in_processes, gcs_client = _part(_PROCESSES), _part(_GCS_CLIENT)
    if find_in_processes is None or gcs_client is None:
        return True  # ray.init will find out
    here = find_in_processes("--node_id")
    nodes = gcs_client(address=gcs_address).get_all_node_info(timeout=timeout_s)
    return any(node_id.hex() in here for node_id in nodes)


def local_gcs_addresses() -> list[str]:
    """Returns the Rays of this host by their processes; `auto` takes one that left no address file."""
    find = _part(_GCS_PROCESSES)
    if find is None:
        return []
    if hasattr(find, "cache_clear"):  # newer Rays remember what they found
        find.cache_clear()
    return sorted(find())


def silence_raylet() -> Callable[[], None]:
    """Turns the messages that raylets send to drivers into debug lines; returns how to undo it.

    Ray prints them on stdout regardless of log_to_driver (listen_error_messages): a page for each
    process that dies, where `--json` promises one object and nothing else.
    """
    original = _part(_STDOUT)
    if original is None:
        return lambda: None
    ray_worker: Any = importlib.import_module("ray._private.worker")

    def log(data: Any, *_: Any, **__: Any) -> None:
        logger.debug("ray: %s", " ".join(data.get("lines", ())))

    def undo() -> None:
        ray_worker.print_to_stdstream = original

    ray_worker.print_to_stdstream = log
    return undo


class _AutoInit:
    """In the place of Ray's flag: false in the threads that forbid it."""

    def __init__(self, *, is_enabled: bool) -> None:
        self._is_enabled = is_enabled
        self.forbidden_in = threading.local()

    def __bool__(self) -> bool:
        return self._is_enabled and not getattr(self.forbidden_in, "is_on", False)


def forbid_auto_init() -> None:
    """Makes calls of this thread fail where Ray is not connected, instead of starting a Ray.

    Ray reads RAY_ENABLE_AUTO_CONNECT, which says so for a whole process, only once.
    """
    flag = _part(_AUTO_INIT)
    if flag is None:
        return
    if not isinstance(flag, _AutoInit):
        flag = _AutoInit(is_enabled=flag)
        importlib.import_module("ray._private.auto_init_hook").enable_auto_connect = flag  # type: ignore[attr-defined]
    flag.forbidden_in.is_on = True


def is_started_here() -> bool:
    """Whether the connected Ray was started by this process's ray.init, with which it ends."""
    node = _part(_NODE)
    return node is not None and bool(node.is_head())


def session_path() -> str:
    """Returns the embedded Ray's folder of sockets and logs, which ray.shutdown leaves behind."""
    node = _part(_NODE)
    if node is None:
        raise ClusterError(
            f"Ray {ray.__version__} does not show where an embedded Ray keeps its files; install ray<2.61, "
            "or start one with `ray start --head` and give --address auto"
        )
    return str(node.get_session_dir_path())


def free_resources() -> dict[str, dict[str, float]]:
    """Returns what is free by node id; ray.available_resources() gives the sum over all nodes alone."""
    available = _part(_FREE)
    if available is None:
        nodes = ray.nodes()  # type: ignore[no-untyped-call]
        return {node["NodeID"]: dict(node["Resources"]) for node in nodes if node["Alive"]}
    return dict(_in_cluster(available))


def draining_nodes() -> frozenset[str]:
    """Returns the ids of the nodes that are about to be taken away, which ray.nodes() does not return."""
    if not hasattr(_part(_STATE), "get_draining_nodes"):
        return frozenset()
    return frozenset(_in_cluster(lambda: _part(_STATE).get_draining_nodes()))


def _in_cluster(ask: Callable[[], Any]) -> Any:
    """Asks Ray's state, which a process that is connected by `ray://` lacks: a task asks in its place."""
    if not ray.util.client.ray.is_connected():  # type: ignore[no-untyped-call]
        return ask()
    return ray.get(ray.remote(num_cpus=0)(ask).remote())


def pid_of(actor: Any, *, node_id: str) -> int | None:
    """Returns the process of an actor on that node; None where it is on another one or never had one.

    Known of dead actors too. The state API returns it as well, but needs Ray's dashboard.
    """
    state = _part(_STATE)
    if not hasattr(state, "actor_table"):
        return None
    known = state.actor_table(actor._actor_id.hex())
    if known.get("Address", {}).get("NodeID") != node_id:
        return None
    return known.get("Pid") or None


def kill_split_coordinator(share: Any) -> None:
    """Ends the actor that reads for all shares of one `Dataset.streaming_split`.

    It would end by itself once no share is left, but the arguments of tasks that were killed are not
    forgotten at once, and there is no call for it.
    """
    coordinator = getattr(share, "_coord_actor", None)
    if coordinator is not None:
        ray.kill(coordinator)


def cluster_can_grow() -> bool:
    """Whether an autoscaler may add nodes: by the status that it leaves in Ray's key-value store.

    Without an autoscaler's configuration a read-only one runs, whose node types are `node_<id>`.
    Autoscaler v2 leaves no such status, but marks its nodes with the group that they belong to.
    """
    get = _part(_KEY_VALUES)
    if get is None:
        return False
    try:
        status = get(_AUTOSCALER_STATUS)
        is_v2 = get("__autoscaler_v2_enabled") == b"1"
    except (RayError, ConnectionError):
        return False
    if is_v2:
        return any("ray.io/node-group" in node.get("Labels", {}) for node in ray.nodes())  # type: ignore[no-untyped-call]
    return names_node_types(status) if status else False


def names_node_types(status: bytes) -> bool:
    report = json.loads(status).get("autoscaler_report") or {}
    node_types = (report.get("node_type_mapping") or {}).values()
    return any(not name.startswith(_READ_ONLY_NODE_TYPE) for name in node_types)
