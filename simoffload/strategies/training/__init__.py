"""Training: the trace of a step, its operations, and what it keeps where.

To read in this order: ``trace`` (which hooks fire and what is computed), ``walk`` (the coordinator and the
buckets on their way through it), ``writer`` (operations of forward and backward), ``optimizer`` (of the
step), ``plan`` (a run on a machine). Then ``modes`` and what it chooses from (``zenflow``, ``super_offload``,
``activation_offload``), ``storage_io`` (bytes and requests), ``memory`` and ``fsdp``, which shares little
with the rest. Read at DeepSpeed 0.19.6 where a module says no other version; traces were recorded at 0.19.8.
"""
