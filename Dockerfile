# Images of the product, one stage per component: operator, jobs, nodecache.
#
#   docker build --target operator .        (or buildah; `make cluster` builds them over a plain Debian base)
#
# BASE is any Debian-like image; Python 3.11 or newer, bash and wget (KubeRay's probes call both) are added where it lacks them.
ARG BASE=docker.io/library/debian:bookworm-slim

FROM ${BASE} AS runtime
RUN command -v python3 wget bash >/dev/null && test -d /etc/ssl/certs || { \
      apt-get update && apt-get install --yes --no-install-recommends bash ca-certificates python3 wget \
      && rm -rf /var/lib/apt/lists/*; }
# PYTHONSAFEPATH: the working directory never supplies modules. HOME: Ray and Hugging Face want one that can be written.
ENV PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 HOME=/tmp PATH=/opt/ai-models/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
WORKDIR /tmp

# Tools to build with; nothing of this stage is in an image.
FROM runtime AS build
ARG UV=uv==0.13.9
RUN python3 -c 'import ensurepip, venv' 2>/dev/null || { \
      apt-get update && apt-get install --yes --no-install-recommends python3-venv; }
RUN python3 -m venv /build && /build/bin/pip install --no-cache-dir "${UV}"
ENV UV_PYTHON_DOWNLOADS=never UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy UV_NO_CACHE=1 UV_SYSTEM_CERTS=1 \
    UV_PROJECT_ENVIRONMENT=/opt/ai-models UV_NO_DEFAULT_GROUPS=1
WORKDIR /source
COPY pyproject.toml uv.lock ./

# Locked dependencies, apart from our own code: these layers change only with uv.lock.
FROM build AS operator-packages
RUN /build/bin/uv sync --frozen --no-install-project --extra operator

# Jobs and the node cache share one set, so that a node stores its largest layer once.
FROM build AS data-packages
RUN /build/bin/uv sync --frozen --no-install-project --extra jobs --extra nodecache

# Our own code, installed at the place where the packages are, without them: a thin layer that fits over each set.
FROM build AS product
COPY README.md LICENSE ./
COPY core core
COPY ray_jobs ray_jobs
COPY nodecache nodecache
COPY operator operator
RUN /build/bin/uv build --wheel --out-dir /wheel \
    && /build/bin/uv venv /opt/ai-models \
    && /build/bin/uv pip install --no-deps --python /opt/ai-models/bin/python /wheel/*.whl

FROM runtime AS operator
COPY --from=operator-packages /opt/ai-models /opt/ai-models
COPY --from=product /opt/ai-models /opt/ai-models
USER 64535:64535
CMD ["python3", "-m", "aimodels_operator"]

FROM runtime AS data
COPY --from=data-packages /opt/ai-models /opt/ai-models

FROM data AS jobs
COPY --from=product /opt/ai-models /opt/ai-models
USER 64535:64535
CMD ["ai-models", "--help"]

# The node cache makes and mounts file systems.
FROM data AS nodecache
RUN apt-get update && apt-get install --yes --no-install-recommends e2fsprogs mount util-linux xfsprogs \
    && rm -rf /var/lib/apt/lists/*
COPY --from=product /opt/ai-models /opt/ai-models
USER 64535:64535
CMD ["python3", "-m", "aimodels_nodecache"]
