"""Kernels for CPUs in C++ (csrc/), from a wheel or built on the user's machine, called through XLA's foreign functions.

`attention` has `CpuAttention` for any x86-64 or ARM64 CPU and `AmxAttention` for CPUs with AMX; `layer_ops` has the
matrix products of a layer for AMX. On other CPUs products are XLA's. Which of them a model gets is `engine.kernels`.
"""
