"""The gRPC service `vllm.grpc.engine.VllmEngine`, by which other gateways and routers use a vLLM server (`--grpc`).

Its messages come from the package smg-grpc-proto. A call is handled like an HTTP request for the same, see `calls`.
"""
