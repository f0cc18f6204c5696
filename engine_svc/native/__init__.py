"""C++ kernels for the CPU: the sources, building them, and calling them."""
