"""What MaxText and xpk call mesh axes and chips."""

# Axes inside a slice, of ours and of MaxText's.
AXES = {
    "data": ("data",),
    "fsdp": ("fsdp", "fsdp_transpose"),
    "sequence": ("context", "sequence"),
    "tensor": ("tensor", "tensor_sequence", "tensor_transpose"),
    "expert": ("expert",),
}
# What xpk and MaxText call chips, as the catalog does.
CHIPS = {"v4": "v4", "v5litepod": "v5e", "v5e": "v5e", "v5p": "v5p", "v6e": "v6e", "tpu7x": "tpu7x"}
