"""A format of the key-value cache: NVFP4, 4 bits and a scale of 8 bits for each 16 elements.

``python cache_format.py run cache_format.yaml`` simulates it.
"""

from simoffload.cli import main
from simoffload.strategies.authoring import register_cache_format

register_cache_format("nvfp4", 0.5 + 1 / 16)

if __name__ == "__main__":
    raise SystemExit(main())
