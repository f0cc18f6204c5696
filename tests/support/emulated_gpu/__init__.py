"""A GPU for torch, emulated on the CPU, that detects the mistakes a real GPU would reveal.

These are: mixing host and device tensors, host waits in the middle of a step, touching pinned memory too early, reading
memory that has not been written, and changing what must stay as it was when a graph was recorded. Kernels run in
Triton's interpreter, as fast as that is.

It shows nothing about speed, about concurrent streams, as it has only one, or about the code that Triton's compiler
generates. Once installed, it stays for the lifetime of the process, so tests that need it run in a separate process
(`make test-emulated-gpu`).
"""
