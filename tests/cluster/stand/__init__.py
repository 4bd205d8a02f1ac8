"""The stand: a real Kubernetes of several nodes in namespaces of its own on this machine.

Outside half: `supervisor` (prerequisites, sandbox, sweep) and `janitor` (removes what is not namespaced).
Inside half: `inside` (first process of the sandbox) starts `controlplane`, `node`s and `addons`;
`cluster` is what tests hold. What the tests check, and the product, do not belong here.
"""
