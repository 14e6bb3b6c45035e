"""Streams of requests: what a replica of a serving engine computes, step by step, and when."""
