# syntax=docker/dockerfile:1
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/quire
ENV PATH=/opt/quire/bin:$PATH
WORKDIR /src
COPY constraints.txt ./
# Where torch comes from: https://download.pytorch.org/whl/cpu for a small image, nothing for PyPI's CUDA build.
ARG TORCH_INDEX=
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --constraint constraints.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch
COPY pyproject.toml setup.py README.md LICENSE ./
COPY quire quire
COPY engine_svc engine_svc
COPY demo_model demo_model
# `engine,ray` for ranks that Ray starts.
ARG EXTRAS=engine
# With the CPU kernels of all levels of the image's architecture, so that no compiler is needed when it runs.
RUN --mount=type=cache,target=/root/.cache pip install --constraint constraints.txt ".[${EXTRAS},tracing]"

FROM python:3.12-slim
# Triton compiles a launcher for each kernel; KubeRay asks nodes how they are by wget.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev wget && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 10001 --no-create-home quire
COPY --from=build /opt/quire /opt/quire
# malloc asks for huge pages, as `quire serve` has it do in its engines: prompts take a tenth less time on a CPU.
ENV PATH=/opt/quire/bin:$PATH PYTHONUNBUFFERED=1 HOME=/tmp GLIBC_TUNABLES=glibc.malloc.hugetlb=1
USER 10001
EXPOSE 50053
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=5s --start-period=30s CMD ["python", "-m", "quire.healthcheck", "grpc", "127.0.0.1:50053"]
ENTRYPOINT ["quire", "engine"]
