"""Kernels in Triton. Imported only where Triton is installed; their reference in torch stands one package up."""
