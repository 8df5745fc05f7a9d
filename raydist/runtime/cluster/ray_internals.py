"""Everything that raydist uses of Ray beside its public API, all of it checked against Ray 2.60.

Each function says what it takes from Ray and why the public API cannot do it.
"""

from __future__ import annotations

import enum
import json
import logging
from collections.abc import Callable
from typing import Any

import grpc  # type: ignore[import-untyped]
import ray
from ray._private import gcs_utils, ray_constants, services, state as ray_state, worker as ray_worker
from ray._raylet import AuthenticationTokenLoader, Config, GcsClient  # type: ignore[attr-defined]
from ray.exceptions import AuthenticationError, RayError
from ray.experimental.internal_kv import _internal_kv_get

logger = logging.getLogger(__name__)

_GET_CLUSTER_ID = "/ray.rpc.NodeInfoGcsService/GetClusterId"
_CLIENT_CLUSTER_INFO = "/ray.rpc.RayletDriver/ClusterInfo"
_READ_ONLY_NODE_TYPE = "node_"


class Answer(enum.Enum):
    """How an address answered."""

    RAY = "RAY"
    UNAUTHENTICATED = "UNAUTHENTICATED"  # Ray, but not with this token
    OTHER = "OTHER"  # nothing, or no Ray


def reload_authentication() -> None:
    """Makes Ray read RAY_AUTH_MODE and the token again.

    `import ray` has read them into C++ caches, and ray.init does so only for addresses that it
    found by itself (authentication_token_setup.py does just this).
    """
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def has_token() -> bool:
    """Whether there is a token, by RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or the default file.

    Ray's own search. Connecting in token mode without a token aborts the process in C++.
    """
    try:
        return bool(AuthenticationTokenLoader.instance().has_token(ignore_auth_mode=True))
    except AuthenticationError:
        return False  # RAY_AUTH_TOKEN_PATH names a file that cannot be read


def ask_gcs(address: str, *, timeout_s: float) -> Answer:
    """Asks for the cluster's id, one call on a channel as Ray makes them (TLS, token, no proxy).

    ray.init hangs for a minute on a port that is no Ray's, and retries a wrong token for 20 s.
    """
    return _answer(address, _GET_CLUSTER_ID, b"", timeout_s=timeout_s)


def ask_client_server(address: str, *, timeout_s: float) -> Answer:
    """The same for a `ray://` address, by the ping with which Ray's own client begins."""
    from ray.core.generated import ray_client_pb2

    messages: Any = ray_client_pb2
    ping = messages.ClusterInfoRequest(type=messages.ClusterInfoType.PING)
    return _answer(address, _CLIENT_CLUSTER_INFO, ping.SerializeToString(), timeout_s=timeout_s)


def _answer(address: str, method: str, request: bytes, *, timeout_s: float) -> Answer:
    channel = gcs_utils.create_gcs_channel(address)
    try:
        channel.unary_unary(method)(request, timeout=timeout_s)
    except grpc.RpcError as error:
        is_refused = error.code() is grpc.StatusCode.UNAUTHENTICATED
        return Answer.UNAUTHENTICATED if is_refused else Answer.OTHER
    finally:
        channel.close()
    return Answer.RAY


def has_node_here(gcs_address: str, *, timeout_s: float) -> bool:
    """Whether a raylet of that cluster runs on this host; ray.init looks for one for a minute."""
    here = services.find_node_ids()  # type: ignore[no-untyped-call]
    nodes = GcsClient(address=gcs_address).get_all_node_info(timeout=timeout_s)
    return any(node_id.hex() in here for node_id in nodes)


def local_gcs_addresses() -> list[str]:
    """Returns the Rays of this host by their processes; `auto` takes one that left no address file."""
    services.find_gcs_addresses.cache_clear()  # type: ignore[attr-defined]
    return sorted(services.find_gcs_addresses())  # type: ignore[no-untyped-call]


def silence_raylet() -> Callable[[], None]:
    """Turns the messages that raylets send to drivers into debug lines; returns how to undo it.

    Ray prints them on stdout whatever log_to_driver says (listen_error_messages): a page for each
    process that dies, where `--json` promises one object and nothing else.
    """
    original = ray_worker.print_to_stdstream

    def log(data: Any, *_: Any, **__: Any) -> None:
        logger.debug("ray: %s", " ".join(data.get("lines", ())))

    def undo() -> None:
        ray_worker.print_to_stdstream = original

    ray_worker.print_to_stdstream = log
    return undo


def is_started_here() -> bool:
    """Whether the connected Ray was started by this process's ray.init, with which it ends."""
    node: Any = ray_worker._global_node
    return node is not None and bool(node.is_head())


def session_path() -> str:
    """Returns the embedded Ray's folder of sockets and logs, which ray.shutdown leaves behind."""
    node: Any = ray_worker._global_node
    return str(node.get_session_dir_path())


def free_resources() -> dict[str, dict[str, float]]:
    """Returns what is free by node id; ray.available_resources() gives the sum over all nodes alone."""
    return dict(ray_state.available_resources_per_node())  # type: ignore[no-untyped-call]


def draining_nodes() -> frozenset[str]:
    """Returns the ids of the nodes that are about to be taken away, which ray.nodes() does not tell."""
    return frozenset(ray_state.state.get_draining_nodes())


def kill_split_coordinator(share: Any) -> None:
    """Ends the actor that reads for all shares of one `Dataset.streaming_split`.

    It would end by itself once no share is left, but the arguments of tasks that were killed are not
    forgotten at once, and there is no call for it.
    """
    ray.kill(share._coord_actor)


def cluster_can_grow() -> bool:
    """Whether an autoscaler may add nodes: by the status that it leaves in Ray's key-value store.

    Without an autoscaler's configuration a read-only one runs, whose node types are `node_<id>`.
    Autoscaler v2 leaves no such status, but marks its nodes with the group that they belong to.
    """
    try:
        status = _internal_kv_get(ray_constants.DEBUG_AUTOSCALING_STATUS)
        is_v2 = _internal_kv_get("__autoscaler_v2_enabled") == b"1"
    except (RayError, ConnectionError):
        return False
    if is_v2:
        return any("ray.io/node-group" in node.get("Labels", {}) for node in ray.nodes())  # type: ignore[no-untyped-call]
    return names_node_types(status) if status else False


def names_node_types(status: bytes) -> bool:
    report = json.loads(status).get("autoscaler_report") or {}
    node_types = (report.get("node_type_mapping") or {}).values()
    return any(not name.startswith(_READ_ONLY_NODE_TYPE) for name in node_types)
