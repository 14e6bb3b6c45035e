"""DeepSpeed's ZeRO-3, replayed: its coordinator, the order of its hooks, and their replay."""
