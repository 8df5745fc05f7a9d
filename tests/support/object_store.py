"""A real S3 server over HTTP: moto's, in a process of its own."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator

# In a process of its own, so that neither its threads nor its warnings are ours; it ends when its
# stdin is closed, also when pytest is killed.
_S3_SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
"""


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """Yields the server's endpoint."""
    with subprocess.Popen(
        [sys.executable, "-c", _S3_SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"


def s3_environ(endpoint: str) -> dict[str, str]:
    """Returns AWS's own environment variables, by which users reach a store."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def new_bucket(endpoint: str) -> str:
    """Makes a bucket and returns its name."""
    bucket = f"bucket-{uuid.uuid4().hex}"
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{bucket}", method="PUT")).close()
    return bucket
