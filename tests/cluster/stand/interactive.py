"""What `make cluster` runs inside a stand: say how to use it from another terminal, and wait for Ctrl-C."""

import signal

from tests.cluster.stand.cluster import Cluster
from tests.cluster.stand.layout import ADDRESS

WORDS = """
Kubernetes is up: {nodes}. It has a network of its own; from another terminal:

  tests/cluster/run --enter {id} kubectl get pods --all-namespaces
  tests/cluster/run --enter {id}          # a shell with kubectl, helm and ctr

Its address inside is {address}; logs of all parts: {logs}
Ctrl-C ends it."""


def main() -> None:
    """Print how to get in, and wait until interrupted."""
    cluster = Cluster.attach()
    names = ", ".join(node.name for node in cluster.nodes)
    print(WORDS.format(nodes=names, id=cluster.layout.id, address=ADDRESS, logs=cluster.layout.logs), flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        signal.pause()
    except KeyboardInterrupt:
        print("ending", flush=True)


if __name__ == "__main__":
    main()
