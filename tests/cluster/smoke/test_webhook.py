"""An admission webhook that the API server finds by Service, served by a Pod with a certificate of the stand's CA."""

import base64

from tests.cluster.smoke.test_workloads import service
from tests.cluster.stand.cluster import Cluster
from tests.cluster.stand.kubectl import Kubectl, Object, pod
from tests.cluster.stand.waiting import until

SERVER = """
import base64, http.server, json, ssl
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]
        patch = [{"op": "add", "path": "/metadata/annotations", "value": {"seen-by": "webhook"}}]
        answer = {"uid": request["uid"], "allowed": True, "patchType": "JSONPatch",
                  "patch": base64.b64encode(json.dumps(patch).encode()).decode()}
        body = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
server = http.server.ThreadingHTTPServer(("", 8443), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("/pki/tls.crt", "/pki/tls.key")
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""


def configuration(namespace: str, bundle: str) -> Object:
    webhook = {
        "name": "stamp.example.com",
        "clientConfig": {"service": {"namespace": namespace, "name": "stamp", "port": 80}, "caBundle": bundle},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": namespace},
        "webhooks": [webhook],
    }


def config_map(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}


def test_admission_webhook_is_called_by_service_and_its_absence_refuses(space: Kubectl, stand: Cluster) -> None:
    pair = stand.authority.server("stamp", f"stamp.{space.namespace}.svc")
    space("create", "secret", "tls", "stamp", f"--cert={pair.certificate}", f"--key={pair.key}")
    server = pod(
        "stamp",
        "localhost/debian:1",
        command=["python3", "-c", SERVER],
        volumes=[{"name": "pki", "secret": {"secretName": "stamp"}}],
        container={
            "volumeMounts": [{"name": "pki", "mountPath": "/pki"}],
            "readinessProbe": {"tcpSocket": {"port": 8443}, "periodSeconds": 1},
        },
    )
    space.apply(server, service("stamp", 8443))
    space.ready("stamp")
    bundle = base64.b64encode(stand.layout.ca.read_bytes()).decode()
    try:
        space.apply(configuration(space.namespace, bundle))
        until(lambda: stamped(space), what="webhook called", seconds=30, pause=0.5)
        space("delete", "pod", "stamp")
        words = until(
            lambda: space.attempt("create", "configmap", "late").stderr, what="refusal", seconds=30, pause=0.5
        )
    finally:
        Kubectl()("delete", "mutatingwebhookconfiguration", space.namespace, "--ignore-not-found")

    assert 'failed calling webhook "stamp.example.com"' in words


def stamped(space: Kubectl) -> bool:
    """Whether a ConfigMap made now passes the webhook (the API server learns of a new one a little later)."""
    space("delete", "configmap", "early", "--ignore-not-found")
    if space.attempt("create", "configmap", "early").returncode != 0:
        return False
    return bool(space.get("configmap", "early")["metadata"].get("annotations", {}).get("seen-by") == "webhook")
