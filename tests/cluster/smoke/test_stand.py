"""The stand itself, seen from inside: its programs, S3 and registry over TLS of one CA, memory, no way out."""

import socket
import ssl
import urllib.request

import boto3
import pytest
from botocore.config import Config

from tests.cluster.stand import addons
from tests.cluster.stand.cluster import Cluster
from tests.cluster.stand.waiting import command

GIB = 1024**3


def test_every_program_runs(stand: Cluster) -> None:
    stopped = [f"{part.name}\n{part.tail()}" for part in stand.parts if not part.running()]

    assert stopped == []


def test_s3_answers_by_name_with_a_certificate_of_the_stands_ca(stand: Cluster) -> None:
    client = boto3.client(
        "s3",
        endpoint_url="https://s3.example.com",
        verify=str(stand.layout.ca),
        region_name="us-east-1",
        aws_access_key_id=addons.S3_ACCESS_KEY,
        aws_secret_access_key=addons.S3_SECRET_KEY,
        config=Config(s3={"addressing_style": "path"}, signature_version="s3v4"),
    )
    client.create_bucket(Bucket="smoke")
    client.put_object(Bucket="smoke", Key="folder/key", Body=b"content")
    found = client.get_object(Bucket="smoke", Key="folder/key")["Body"].read(100)
    client.close()

    assert found == b"content"


def test_registry_lists_the_images_of_the_users_manifests(stand: Cluster) -> None:
    context = ssl.create_default_context(cafile=str(stand.layout.ca))
    with urllib.request.urlopen(
        "https://registry.example.com/v2/embedder/tags/list", context=context, timeout=10
    ) as answer:
        assert answer.read(1000).strip() == b'{"name":"embedder","tags":["latest"]}'


def test_sandbox_has_no_way_out() -> None:
    with pytest.raises(OSError, match=r"unreachable"):
        socket.create_connection(("192.0.2.1", 80), timeout=2)


def test_commands_and_images_are_at_hand(stand: Cluster) -> None:
    images = command("ctr", "images", "list", "--quiet").split()

    assert command("helm", "version", "--short").startswith("v3.")
    assert {"localhost/busybox:1", "localhost/debian:1", "localhost/ai-models-operator:1"} <= set(images)
    assert {"localhost/ai-models-jobs:1", "localhost/ai-models-nodecache:1"} <= set(images)


def test_stand_takes_little_memory(stand: Cluster) -> None:
    assert stand.memory_bytes() < 2 * GIB  # 1.5 GiB when idle; the tests' own Pods and pytest are in it
