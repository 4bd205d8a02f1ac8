"""Which module serves which source. The only place that knows them all."""

import dataclasses

from aimodels_core.messages import Want
from aimodels_core.source import Gate, Source
from aimodels_jobs.sources import hub_url
from aimodels_jobs.sources.hub_settings import HubSettings
from aimodels_jobs.sources.huggingface import HuggingFace


@dataclasses.dataclass(frozen=True, slots=True)
class Sourcing:
    """Opens sources. Implements `coordinator.Sources`.

    Args:
        hub: how hubs are reached; its token is used for wants that bring no credential.
        short_forms: accept `org/repo` besides URLs, as on a command line.
    """

    hub: HubSettings
    short_forms: bool = False

    def open(self, want: Want, gate: Gate) -> Source:
        """Return the source that a want names.

        Raises:
            UnsupportedSource: a URL form or host that is not served.
        """
        parse = hub_url.parse_argument if self.short_forms else hub_url.parse
        reference = parse(want.url, endpoint=self.hub.endpoint, revision=want.revision)
        settings = dataclasses.replace(self.hub, token=want.credential or self.hub.token)
        return HuggingFace(reference, settings, gate=gate)
