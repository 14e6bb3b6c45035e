"""A format of the key-value cache: MXFP4, 4 bits and a scale of 8 bits for each 32 elements.

``python cache_format.py run cache_format.yaml`` simulates it.
"""

from simoffload.cli import main
from simoffload.strategies.authoring import register_cache_format

register_cache_format("mxfp4", 0.5 + 1 / 32)

if __name__ == "__main__":
    raise SystemExit(main())
