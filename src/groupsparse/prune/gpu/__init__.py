"""The cut and the masks on a CUDA device: few launches for a whole network, no wait between them.

Everything here has a counterpart in plain PyTorch that gives the same answer, bit for bit, and that
runs wherever this does not apply.
"""
