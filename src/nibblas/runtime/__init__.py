"""Loading and calling native code: the CPU library, and CUDA kernels behind one driver seam."""

from __future__ import annotations

INSTALL_HINT = 'pip install "nibblas[cuda]"'
"""How to get what CUDA kernels need beside the NVIDIA driver."""
