"""A metric of your own, which every command then shows: the bytes that a token moves over links."""

import simoffload as so
from simoffload.cli import main


@so.InferenceResult.register
@so.metric(better="lower", column="moved")
def moved_bytes(result: so.InferenceResult) -> float | None:
    """Moved for a token [B]: bytes over all links in a decode step / tokens that it generates."""
    links = result.token_pass.links if result.token_pass else ()
    moved = sum(one.size for one in links if one.unit == "B")
    return moved / (result.batch_size * result.replicas) if links else None


if __name__ == "__main__":
    raise SystemExit(main())
