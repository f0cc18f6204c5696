"""C++ kernels for the CPU: sources, how they are built, and how they are called."""
