"""Tile and chunk sizes that the trainer uses and the ledgers count with.

They have a file of their own, so that a proof stays valid when a formula changes.
"""

LOSS_CHUNK_BYTES = 256 * 2**20  # fp32 logits that the loss makes at a time, at most
ATTENTION_BLOCK = 512  # queries or keys that the attention kernel takes at a time, at most
TILE = (128, 128)  # elements, of which a device reduces whole ones: fewer, and TPU pads them
