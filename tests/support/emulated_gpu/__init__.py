"""A GPU for torch that is the CPU, and finds out what a real one would: tensors of host and device mixed, waits of the
host in the middle of a step, pinned memory touched too early, memory that nobody has written, and what does not stay
what it was when a graph was recorded. Kernels run in Triton's interpreter, as fast as that is.

It proves nothing about speed, about streams beside each other, of which it has but one, nor about what Triton's
compiler makes of kernels. Once it is installed it stays for as long as the process: tests that need it have one of
their own (`make test-emulated-gpu`).
"""
