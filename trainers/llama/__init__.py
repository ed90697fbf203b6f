"""Trainer llama: Llama-family pre-training. Read in this order:

parameters  every tensor that is trained, its shape and sharding
model       the forward pass of one chip, every exchange in sight
step        microbatches, the reduction of gradients, the optimizer; the Program
"""

from trainers.llama.step import program

__all__ = ["program"]
