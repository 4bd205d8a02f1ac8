"""What the Secrets of the module's own namespace should be: `decide(seen) -> what to make, what is amiss`. Pure.

A Secret that is usable is kept, whoever put it there; one that is not is made anew. How something is made is data here;
`household` carries it out.
"""

import dataclasses
import datetime
from collections.abc import Mapping

from aimodels_core.names import TOKEN_KEYS, HomeSecret
from aimodels_operator import certificates
from aimodels_operator.certificates import Pair

CERTIFICATE, KEY, AUTHORITY = "tls.crt", "tls.key", "ca.crt"

_LEAST_TOKEN_CHARS = 16
_MOST_TOKEN_CHARS = 8192

Values = Mapping[str, str]
"""Keys of a Secret and what they hold; empty when there is no such Secret."""


@dataclasses.dataclass(frozen=True, slots=True)
class Authority:
    """Make a self-signed authority."""

    common_name: str


@dataclasses.dataclass(frozen=True, slots=True)
class Leaf:
    """Have an authority issue a certificate.

    Args:
        root: Secret of the authority.
        common_name: of the certificate.
        hosts: names of the server that it is for; it is to sign with when there are none.
        patient: a good one of a former authority is kept for one look more: its callers learn of the new one first.
    """

    root: HomeSecret
    common_name: str
    hosts: tuple[str, ...]
    patient: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Token:
    """Draw a bearer token."""

    key: str


@dataclasses.dataclass(frozen=True, slots=True)
class Copy:
    """Take what the administrator's Secret holds."""

    values: Values = dataclasses.field(repr=False)


Own = Authority | Leaf | Token
Recipe = Own | Copy


@dataclasses.dataclass(frozen=True, slots=True)
class Make:
    """Create a Secret, or replace these keys of the one that is there.

    Args:
        name: of the Secret.
        recipe: how its values are made.
        why: for people; no values.
        broken: what is there cannot be used, and is lost.
    """

    name: HomeSecret
    recipe: Recipe
    why: str
    broken: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """All that a decision looks at.

    Args:
        namespace: of the Secrets.
        now: aware.
        home: what each Secret here holds; those that could not be read are left out, and are not touched.
        sources: what the administrator's Secret for each mirror holds; those that are not named or could not be read
            are left out.
    """

    namespace: str
    now: datetime.datetime
    home: Mapping[HomeSecret, Values] = dataclasses.field(repr=False)
    sources: Mapping[HomeSecret, Values] = dataclasses.field(default_factory=dict, repr=False)


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done.

    Args:
        makes: in this order: an authority before what it issues.
        troubles: of mirrors, for people.
    """

    makes: tuple[Make, ...]
    troubles: Mapping[HomeSecret, str]


def recipes(namespace: str) -> dict[HomeSecret, Own]:
    """How each Secret of our own is made; authorities come before what they issue."""

    def server(service: str, *, patient: bool = False) -> Leaf:
        hosts = (service, f"{service}.{namespace}", f"{service}.{namespace}.svc")
        return Leaf(HomeSecret.SERVING_ROOT, service, (*hosts, f"{hosts[-1]}.cluster.local"), patient)

    return {
        HomeSecret.SERVING_ROOT: Authority("ai-models serving root"),
        HomeSecret.ISSUER_ROOT: Authority("ai-models token root"),
        HomeSecret.COORDINATOR_TLS: server("ai-models-coordinator"),
        HomeSecret.DMCR_TLS: server("ai-models-dmcr"),
        HomeSecret.WEBHOOK_TLS: server("ai-models-webhook", patient=True),
        HomeSecret.ISSUER: Leaf(HomeSecret.ISSUER_ROOT, "ai-models token signer", ()),
        HomeSecret.COORDINATOR: Token("token"),
        HomeSecret.RAY: Token("auth_token"),
    }


MIRRORS: Mapping[HomeSecret, Mapping[str, tuple[str, ...]]] = {
    HomeSecret.S3: {"accessKey": ("accessKey",), "secretKey": ("secretKey",)},
    HomeSecret.S3_CA: {AUTHORITY: (AUTHORITY,)},
    HomeSecret.HUB: {"token": TOKEN_KEYS},
    HomeSecret.HUB_CA: {AUTHORITY: (AUTHORITY,)},
}
"""Keys of each mirror, and the keys of the administrator's Secret that may hold the value."""


def decide(seen: Seen) -> Decision:
    """Say what is to be made, and what is amiss with mirrors."""
    makes = _own(seen)
    troubles: dict[HomeSecret, str] = {}
    for name, values in seen.sources.items():
        copy = mirrored(name, values)
        if isinstance(copy, str):
            troubles[name] = copy
            continue
        held = seen.home.get(name)
        if held is not None and any(held.get(key) != value for key, value in copy.values.items()):
            makes.append(Make(name, copy, "the administrator's Secret has changed" if held else "not there"))
    return Decision(tuple(makes), troubles)


def mirrored(name: HomeSecret, values: Values) -> Copy | str:
    """What a mirror should hold, given the administrator's Secret; or what that lacks."""
    copied: dict[str, str] = {}
    for key, accepted in MIRRORS[name].items():
        found = next((values[one] for one in accepted if values.get(one, "").strip()), "")
        if not found:
            return f"want a value in key {' or '.join(accepted)}, got none"
        if key == AUTHORITY:
            fault = certificates.bundle_fault(found)
        else:
            found = found.strip()
            fault = "" if _is_visible(found) else "want visible ASCII characters"
        if fault:
            return f"key {' or '.join(accepted)}: {fault}"
        copied[key] = found
    return Copy(copied)


def is_token(text: str) -> bool:
    """Whether a text can be a bearer token that nobody guesses."""
    return len(text) >= _LEAST_TOKEN_CHARS and _is_visible(text)


def _own(seen: Seen) -> list[Make]:
    makes: list[Make] = []
    anew: set[HomeSecret] = set()
    for name, recipe in recipes(seen.namespace).items():
        held = seen.home.get(name)
        if held is None:
            continue
        why, broken = _need(recipe, held, seen, anew)
        if why:
            makes.append(Make(name, recipe, why, broken))
            anew.add(name)
    return makes


def _need(recipe: Own, held: Values, seen: Seen, anew: set[HomeSecret]) -> tuple[str, bool]:
    """Why a Secret of our own is to be made, empty if it need not be; and whether what is there is unusable."""
    if isinstance(recipe, Leaf) and recipe.root not in seen.home:
        return "", False
    if not held:
        return "not there", False
    fault = _fault(recipe, held, seen, anew)
    if fault:
        return fault, True
    if isinstance(recipe, Authority) and certificates.is_ending(held[CERTIFICATE], seen.now, certificates.LEAF_LIFE):
        return "near its end", False
    if isinstance(recipe, Leaf) and recipe.root in anew:
        kept = recipe.patient and not certificates.leaf_fault(_pair(held), held[AUTHORITY], recipe.hosts, seen.now)
        return ("", False) if kept else ("its authority is made anew", False)
    if isinstance(recipe, Leaf) and certificates.is_ending(held[CERTIFICATE], seen.now):
        return "near its end", False
    return "", False


def _fault(recipe: Own, held: Values, seen: Seen, anew: set[HomeSecret]) -> str:
    """Say why what a Secret of our own holds cannot be used; empty when it can."""
    match recipe:
        case Token():
            usable = is_token(held.get(recipe.key, "").strip())
            return "" if usable else f"want at least {_LEAST_TOKEN_CHARS} visible characters in key {recipe.key}"
        case Authority():
            missing = _missing(held, CERTIFICATE, KEY)
            return missing or certificates.authority_fault(_pair(held), seen.now)
        case Leaf():
            missing = _missing(held, CERTIFICATE, KEY, AUTHORITY)
            root = seen.home[recipe.root]
            if missing or recipe.root in anew:
                return missing
            if held[AUTHORITY] != root[CERTIFICATE]:
                return f"its {AUTHORITY} is not the present authority"
            return certificates.leaf_fault(_pair(held), root[CERTIFICATE], recipe.hosts, seen.now)


def _missing(held: Values, *keys: str) -> str:
    lacking = [key for key in keys if not held.get(key)]
    return f"no {', '.join(lacking)} in it" if lacking else ""


def _pair(held: Values) -> Pair:
    return Pair(held[CERTIFICATE], held[KEY])


def _is_visible(text: str) -> bool:
    return 0 < len(text) <= _MOST_TOKEN_CHARS and all(0x21 <= ord(c) <= 0x7E for c in text)
