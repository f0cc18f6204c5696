# syntax=docker/dockerfile:1
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/quire
ENV PATH=/opt/quire/bin:$PATH
WORKDIR /src
COPY constraints.txt ./
# Index to install torch from: https://download.pytorch.org/whl/cpu for a small image; empty for PyPI's CUDA build.
ARG TORCH_INDEX=
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --constraint constraints.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch
COPY pyproject.toml setup.py README.md LICENSE ./
COPY quire quire
COPY engine_svc engine_svc
COPY demo_model demo_model
# Extras to install: `engine,ray` if Ray starts the ranks.
ARG EXTRAS=engine
# The wheel includes the CPU kernels of all instruction levels of this architecture, so none are compiled at run time.
RUN --mount=type=cache,target=/root/.cache pip install --constraint constraints.txt ".[${EXTRAS},kv-events,tracing]"

FROM python:3.12-slim
# gcc: Triton compiles a launcher for each kernel. wget: KubeRay checks the health of nodes with it.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev wget && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 10001 --no-create-home quire
COPY --from=build /opt/quire /opt/quire
# Has malloc use huge pages, as `quire serve` does for its engines: on a CPU, prompts take a tenth less time.
ENV PATH=/opt/quire/bin:$PATH PYTHONUNBUFFERED=1 HOME=/tmp GLIBC_TUNABLES=glibc.malloc.hugetlb=1
USER 10001
EXPOSE 50053
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=5s --start-period=30s CMD ["python", "-m", "quire.healthcheck", "grpc", "127.0.0.1:50053"]
ENTRYPOINT ["quire", "engine"]
