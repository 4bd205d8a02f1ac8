"""Answers the API server about workloads and Pods: `POST /mutate/workloads`, `POST /mutate/pods` (AdmissionReview v1).

What becomes of an object is decided in `stamping` and `inject`; nothing is kept from one request to the next, and
nobody else is asked. Whatever is being deleted, and whatever names no model, is let through as it is.
"""

import asyncio
import base64
import dataclasses
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from aimodels_core.errors import UsageError
from aimodels_operator import inject, jsonpatch, stamping
from aimodels_operator.inject import Refused
from aimodels_operator.meters import Histogram
from aimodels_operator.stamping import Request, Verdict

log = logging.getLogger(__name__)

WORKLOADS, PODS = "/mutate/workloads", "/mutate/pods"
PROBE = "/mutate"
"""Answers 200 when objects may be sent here, 503 when they would only be let through."""
MAX_BYTES = 8 * 1024 * 1024
"""The API server takes objects of 3 MiB, and sends the old and the new one."""
_READ_SECONDS = 5.0
_VERSION, _KIND = "admission.k8s.io/v1", "AdmissionReview"
_RESULTS = ("patched", "unchanged", "refused", "malformed")
_BOUNDS = (0.001, 0.005, 0.02, 0.05, 0.2, 1.0)
_MAX_WARNING = 240
_INVALID = 422

Raw = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """A request for admission.

    Args:
        uid: of the request.
        operation: CREATE or UPDATE; others are let through.
        namespace: of the object.
        new: the object as it is to be.
        old: as it is; None when it is created.
    """

    uid: str
    operation: str
    namespace: str
    new: Raw
    old: Raw | None


Deciding = Callable[[Asked], Verdict]


class Admission:
    """Answers requests, and counts them.

    Args:
        shared: models come from shared claims; from caches of nodes if False; None when nothing is delivered, and
            everything is let through.
        clock: monotonic seconds.
    """

    def __init__(self, *, shared: bool | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._shared = shared
        self._clock = clock
        self._results: Counter[tuple[str, str]] = Counter()
        self._seconds = Histogram(_BOUNDS)

    def route(self, router: web.UrlDispatcher) -> None:
        """Add our paths."""
        router.add_post(WORKLOADS, self._handler("workloads", self._workload))
        router.add_post(PODS, self._handler("pods", self._pod))
        router.add_get(PROBE, self._probe)

    def metrics(self) -> list[str]:
        """Render what was counted, as lines of Prometheus' text format."""
        lines = ["# HELP aimodels_admissions_total Requests of the API server about objects, by what became of them."]
        lines += ["# TYPE aimodels_admissions_total counter"]
        for about in ("workloads", "pods"):
            for result in _RESULTS:
                n = self._results[about, result]
                lines.append(f'aimodels_admissions_total{{about="{about}",result="{result}"}} {n}')
        return lines + self._seconds.lines("aimodels_admission_seconds")

    async def _probe(self, _: web.Request) -> web.Response:
        admits = self._shared is not None
        return web.Response(status=200 if admits else 503, text="ok\n" if admits else "nothing is delivered\n")

    def _workload(self, asked: Asked) -> Verdict:
        if self._shared is None:
            return Verdict(asked.new)
        request = Request(asked.operation, asked.namespace, asked.new, asked.old)
        return stamping.decide(request, shared=self._shared)

    def _pod(self, asked: Asked) -> Verdict:
        if self._shared is None or asked.operation != stamping.CREATE:
            return Verdict(asked.new)
        found = inject.injected(asked.new, asked.namespace, shared=self._shared)
        return Verdict(asked.new, refused=found.words) if isinstance(found, Refused) else Verdict(found)

    def _handler(self, about: str, decide: Deciding) -> Callable[[web.Request], Any]:
        async def answer(request: web.Request) -> web.Response:
            try:
                async with asyncio.timeout(_READ_SECONDS):
                    body = await request.read()
                began = self._clock()
                asked = read(body)
            except web.HTTPRequestEntityTooLarge:
                self._results[about, "malformed"] += 1
                raise
            except (UsageError, TimeoutError) as error:
                self._results[about, "malformed"] += 1
                return web.Response(status=400, text=f"{str(error) or 'body: want it sooner'}\n")
            passes = asked.operation not in (stamping.CREATE, stamping.UPDATE)
            verdict = Verdict(asked.new) if passes else decide(asked)
            document, result = answered(asked, verdict)
            self._results[about, result] += 1
            if verdict.refused:
                name = str((asked.new.get("metadata") or {}).get("name", ""))
                extra = {"about": about, "namespace": asked.namespace, "object": name, "why": verdict.refused}
                log.info("refused", extra=extra)
            self._seconds.observe(self._clock() - began)
            return web.json_response(document)

        return answer


def read(body: bytes) -> Asked:
    """Read a request.

    Raises:
        UsageError: it is none.
    """
    try:
        review = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"body: want JSON, got {type(error).__name__}") from error
    request = review.get("request") if isinstance(review, dict) else None
    if not isinstance(request, dict) or (review.get("apiVersion"), review.get("kind")) != (_VERSION, _KIND):
        raise UsageError(f"body: want an {_KIND} of {_VERSION} with a request")
    uid, old = request.get("uid"), request.get("oldObject")
    new = request.get("object") if request.get("operation") != "DELETE" else {}
    if not isinstance(uid, str) or not uid or not isinstance(new, dict) or not isinstance(old, dict | None):
        raise UsageError("body: want a request with uid and object")
    return Asked(uid, str(request.get("operation")), str(request.get("namespace") or ""), new, old)


def answered(asked: Asked, verdict: Verdict) -> tuple[dict[str, Any], str]:
    """Render the answer to a request, and say what it is: one of `patched`, `unchanged`, `refused`."""
    response: dict[str, Any] = {"uid": asked.uid, "allowed": not verdict.refused}
    result = "unchanged"
    if verdict.refused:
        result = "refused"
        response["status"] = {"code": _INVALID, "reason": "Invalid", "message": verdict.refused}
    elif operations := jsonpatch.difference(asked.new, verdict.made):
        result = "patched"
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(json.dumps(operations).encode()).decode("ascii")
    if verdict.warning:
        response["warnings"] = [verdict.warning[:_MAX_WARNING]]
    return {"apiVersion": _VERSION, "kind": _KIND, "response": response}, result
