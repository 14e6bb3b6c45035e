"""Training: the state of a run, the trace of a step, and its operations.

To read in this order: ``state`` (tensors, partitions, sub-groups, and where each is kept), ``trace`` (which
hooks fire and what is computed), ``micro_step`` (the coordinator and the buckets on their way through it,
with as few layers as stand for all), ``writer`` (operations of forward and backward), ``step`` (the parts of
a step, and the optimizer's), ``plan`` (a run on a machine). Then the other steps that ``plan`` chooses from
(``zenflow``, ``super_offload``), ``storage_io`` (bytes and requests), ``memory`` and ``fsdp``, which shares
little with the rest. Read at DeepSpeed 0.19.6 where a module says no other version; traces were
recorded at 0.19.8.
"""
