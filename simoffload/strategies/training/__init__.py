"""Training under ZeRO: the state of a run, and the operations of a step.

Order of reading: ``state`` (tensors, partitions, sub-groups, their tiers and files), ``zero.trace`` (order of
hooks and kernels), ``micro_step`` (forward and backward, with as few layers as possible), ``step`` (its
parts, the optimizer step, the modes ZenFlow and SuperOffload), ``memory``; a run
on a machine is in ``programs.zero_training``.
DeepSpeed was read at 0.19.6 unless a module states another version; traces were recorded at 0.19.8.
"""
