"""Training: the state of a run, the trace of a step, and its operations.

Order of reading: ``state`` (tensors, partitions, sub-groups and their tiers), ``trace`` (order of
hooks and kernels), ``micro_step`` (replay of the coordinator and of the gradients' buckets, with as few
layers as possible), ``writer`` (operations of forward and backward), ``step`` (parts of a step, and the
optimizer step), ``plan`` (a run on a machine). Then the other steps that ``plan`` selects (``zenflow``,
``super_offload``), ``storage_io`` (bytes and requests), ``memory``, and ``fsdp``, which shares little with
the rest. DeepSpeed was read at 0.19.6 unless a module states another version; traces were recorded at 0.19.8.
"""
