"""A source that misbehaves while a model is published: what heals by itself, what is shown, and that nothing is lost.

Faults of the payload hit the second part of three; those of the hub hit everything.
"""

from typing import Any

import pytest

from tests.support.badinput import Row, Spoil, run, waits
from tests.support.hub.faults import Fault
from tests.support.hub.repository import Repository
from tests.support.hub.routes import On
from tests.support.hub.server import Hub
from tests.support.publishing import PART, WEIGHTS_BYTES, Shop

WEIGHTS = "model.safetensors"
INSIDE = PART + 7
"""A byte of the second part."""


def payload(kind: Fault, **fields: Any) -> Spoil:
    """A fault of the second part of the weights."""
    return lambda hub, _: hub.fault(kind, on=On.CDN, path=WEIGHTS, **{"offset": INSIDE, **fields})


def asked(kind: Fault, on: On, **fields: Any) -> Spoil:
    """A fault of the hub itself."""
    return lambda hub, _: hub.fault(kind, on=on, **fields)


def both(*spoils: Spoil) -> Spoil:
    def spoil(hub: Hub, repository: Repository) -> None:
        for each in spoils:
            each(hub, repository)

    return spoil


BYTES: dict[str, Spoil] = {
    "other bytes once": payload(Fault.OTHER_BYTES, times=1),
    "one bit differs once": payload(Fault.FLIP_BIT, times=1),
    "cut and one bit differs in the second fetch": both(
        payload(Fault.TRUNCATE, times=1, after_bytes=PART // 2), payload(Fault.FLIP_BIT, times=1, skip=1)
    ),
    "one bit differs in the last part": payload(Fault.FLIP_BIT, times=1, offset=2 * PART),
    "truncated": payload(Fault.TRUNCATE, times=3, after_bytes=1_000_000),
    "truncated at the last byte": payload(Fault.TRUNCATE, times=1, after_bytes=PART - 1),
    "no answer": payload(Fault.TRUNCATE, times=2, after_bytes=None),
    "reset": payload(Fault.RESET, times=3, after_bytes=1_000_000),
    "short": payload(Fault.SHORT, times=1, after_bytes=635),
    "long": payload(Fault.LONG, times=1, after_bytes=1),
    "endless": payload(Fault.ENDLESS, times=1),
    "of no said length": payload(Fault.UNSIZED, times=1),
    "the header cut": asked(Fault.TRUNCATE, On.CDN, path=WEIGHTS, times=1, after_bytes=100),
    "the header's bytes differ in the second fetch": payload(Fault.FLIP_BIT, times=1, skip=1, offset=9),
}
ANSWERS: dict[str, Spoil] = {
    "200 for 206": payload(Fault.IGNORE_RANGE, times=1),
    "another place": payload(Fault.WRONG_RANGE, times=1),
    "another total": payload(Fault.WRONG_TOTAL, times=1),
    "no Content-Range": payload(Fault.NO_CONTENT_RANGE, times=1),
    "gzip": payload(Fault.GZIP, times=1),
    "HTML for the file": payload(Fault.HTML, times=1),
    "a pointer for the file": payload(Fault.POINTER, times=1),
    "redirect loop of the CDN": payload(Fault.REDIRECT_LOOP, times=1),
    "redirect of the CDN to a private address": payload(Fault.REDIRECT, location="http://10.0.0.1/", times=1),
    "signed URL expires in the middle": payload(Fault.EXPIRED, times=1, after_bytes=PART // 3),
    "signed URL refused twice": payload(Fault.EXPIRED, times=2),
    "the CDN host changes in the middle": both(
        payload(Fault.EXPIRED, times=1, after_bytes=PART // 3), asked(Fault.OTHER_CDN, On.RESOLVE, skip=1, path=WEIGHTS)
    ),
}
STATUSES: dict[str, Spoil] = {
    **{f"status {s}": payload(Fault.STATUS, status=s, times=1) for s in (401, 403, 404, 408, 410, 416, 429)},
    **{f"status {s}": payload(Fault.STATUS, status=s, times=1) for s in (500, 502, 503, 504)},
    "status 429 with Retry-After": payload(Fault.STATUS, status=429, retry_after="2", times=1),
    "status 503 with Retry-After": payload(Fault.STATUS, status=503, retry_after="2", times=1),
}
HUB: dict[str, Spoil] = {
    "status 429 of the API": asked(Fault.STATUS, On.INFO, status=429, retry_after="1", times=1),
    "status 429 of resolve": asked(Fault.STATUS, On.RESOLVE, status=429, retry_after="1", times=2),
    "status 503 of resolve": asked(Fault.STATUS, On.RESOLVE, status=503, times=2),
    "status 408 of the listing": asked(Fault.STATUS, On.TREE, status=408, times=1),
    "status 500 of the API": asked(Fault.STATUS, On.INFO, status=500, times=2),
    "half a listing": asked(Fault.BAD_JSON, On.TREE, times=1),
    "the answer of the API is cut": asked(Fault.TRUNCATE, On.INFO, after_bytes=10, times=1),
    "the listing is reset": asked(Fault.RESET, On.TREE, after_bytes=10, times=1),
    "resolve is HTML once": asked(Fault.HTML, On.RESOLVE, path=WEIGHTS, times=1),
    "resolve names another commit once": asked(Fault.WRONG_COMMIT, On.RESOLVE, path=WEIGHTS, times=1),
    "bytes of a small file differ once": asked(Fault.FLIP_BIT, On.RESOLVE, path="tokenizer.json", times=1),
    "bytes of the config differ once": asked(Fault.FLIP_BIT, On.RESOLVE, path="config.json", times=1),
    "a small file is a pointer once": asked(Fault.POINTER, On.RESOLVE, path="config.json", times=1),
    "a small file is HTML once": asked(Fault.HTML, On.RESOLVE, path="config.json", times=1),
    "a weak ETag": asked(Fault.WEAK_ETAG, On.RESOLVE, path="config.json"),
    "no ETag": asked(Fault.NO_ETAG, On.RESOLVE),
}
PASSING = {"bytes": BYTES, "answers": ANSWERS, "statuses": STATUSES, "hub": HUB}

LASTING = {
    "truncated for ever": waits(payload(Fault.TRUNCATE, after_bytes=1000), "ShortBody", WEIGHTS, "1000"),
    "no answer for ever": waits(payload(Fault.TRUNCATE, after_bytes=None), "Reset"),
    "reset for ever": waits(payload(Fault.RESET, after_bytes=1000), "Reset"),
    "short for ever": waits(payload(Fault.SHORT, after_bytes=635), "WrongRange", WEIGHTS, "635"),
    "200 for 206 for ever": waits(payload(Fault.IGNORE_RANGE), "NotPartial", "206", "200"),
    "gzip for ever": waits(payload(Fault.GZIP), "Encoded", "gzip"),
    "HTML for ever": waits(payload(Fault.HTML), "NotPartial", "text/html"),
    "another total for ever": waits(payload(Fault.WRONG_TOTAL), "WrongRange"),
    "status 403 of the CDN for ever": waits(payload(Fault.STATUS, status=403), "Http403", WEIGHTS, "403"),
    "status 404 of the CDN for ever": waits(payload(Fault.STATUS, status=404), "Http404", WEIGHTS, "404"),
    "status 416 for ever": waits(payload(Fault.STATUS, status=416), "Http416", WEIGHTS, "416"),
    "status 500 for ever": waits(payload(Fault.STATUS, status=500), "Http500", WEIGHTS, "500"),
    "redirects of the CDN for ever": waits(payload(Fault.REDIRECT, location="http://10.0.0.1/"), "Http302", WEIGHTS),
    "redirect loop of resolve": waits(asked(Fault.REDIRECT_LOOP, On.RESOLVE), "RedirectLoop", "redirects"),
    "redirect to a private address": waits(
        asked(Fault.REDIRECT, On.RESOLVE, location="http://169.254.169.254/latest/meta-data"), "ForeignRedirect"
    ),
    "redirect to a foreign host": waits(
        asked(Fault.REDIRECT, On.RESOLVE, location="https://cdn.example/x?Signature=secret"), "ForeignRedirect",
        "cdn.example", "allowed explicitly",
    ),
    "redirect of the API to a foreign host": waits(
        asked(Fault.REDIRECT, On.INFO, location="https://hub.example/api"), "ForeignRedirect", "hub.example"
    ),
    "resolve names another commit": waits(asked(Fault.WRONG_COMMIT, On.RESOLVE), "WrongCommit", WEIGHTS, "ffff"),
    "resolve names another digest": waits(asked(Fault.WRONG_DIGEST, On.RESOLVE), "WrongDigest", WEIGHTS, "eeee"),
    "resolve names another size": waits(asked(Fault.WRONG_SIZE, On.RESOLVE), "WrongSize", f"want {WEIGHTS_BYTES}"),
    "the listing is cut short": waits(asked(Fault.LIST_CUT, On.TREE, count=2), "ListingIncomplete", "want"),
    "the listing is HTML": waits(asked(Fault.HTML, On.TREE), "BadAnswer"),
    "half a listing for ever": waits(asked(Fault.BAD_JSON, On.TREE), "BadAnswer"),
}  # fmt: skip


@pytest.mark.parametrize("group", PASSING)
def test_a_fault_that_passes_heals_without_help(group: str, shop: Shop) -> None:
    rows = {name: Row(spoil, attempts=2 if group == "hub" else 1) for name, spoil in PASSING[group].items()}

    wrong = run(shop, rows)
    assert not wrong, wrong


def test_a_fault_that_lasts_is_shown_and_tried_again_until_it_ends(shop: Shop) -> None:
    wrong = run(shop, LASTING)
    assert not wrong, wrong
