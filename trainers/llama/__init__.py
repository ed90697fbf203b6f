"""Pre-training of Llama-family models. Read in this order:

parameters  the tree of parameters, from the description of the network
model       the forward pass of one chip, every collective in sight
layers      attention and MLP of a block; `mixture` has its experts
step        microbatches, the reduction of gradients, the optimizer; the Program
"""

from trainers.llama.step import program

__all__ = ["program"]
