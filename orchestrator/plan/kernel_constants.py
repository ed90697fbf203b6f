"""Plan room: the pieces that a trainer cuts its work into, and the ledgers count with.

Apart from the formulas, so that mending one of them leaves the trainer as it is.
"""

LOSS_CHUNK_BYTES = 256 * 2**20  # fp32 logits that the loss makes at a time, at most
ATTENTION_BLOCK = 512  # queries or keys that the attention kernel takes at a time, at most
TILE = (128, 128)  # elements, of which a device reduces whole ones: fewer, and TPU pads them
