# syntax=docker/dockerfile:1
FROM python:3.12-slim AS build
RUN python -m venv /opt/quire
ENV PATH=/opt/quire/bin:$PATH
WORKDIR /src
COPY constraints.txt ./
COPY pyproject.toml README.md LICENSE ./
COPY quire quire
COPY tokenizer_svc tokenizer_svc
COPY demo_model demo_model
RUN --mount=type=cache,target=/root/.cache/pip pip install --constraint constraints.txt ".[tokenizer,media,tracing]"

FROM python:3.12-slim
RUN useradd --uid 10001 --no-create-home quire
COPY --from=build /opt/quire /opt/quire
ENV PATH=/opt/quire/bin:$PATH PYTHONUNBUFFERED=1 HOME=/tmp
USER 10001
EXPOSE 50052
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=5s --start-period=30s CMD ["python", "-m", "quire.healthcheck", "grpc", "127.0.0.1:50052"]
ENTRYPOINT ["quire", "tokenizer"]
