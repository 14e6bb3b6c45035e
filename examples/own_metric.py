"""A metric of your own: a function of a result, here what a token moves over each link."""

import simoffload as so


def bytes_per_token(result: so.InferenceResult) -> dict[str, float]:
    """Return the bytes [B] that cross each link in a decode step, for each token that it generates."""
    tokens, links = result.batch_size * result.replicas, result.step.links if result.step else ()
    return {one.link: one.size / tokens for one in links if one.unit == "B"}


if __name__ == "__main__":
    for batch in (8, 32):
        scenario = so.load_scenario("ddn/bloom-7b1", overrides=[f"workload.batch_size={batch}"])
        result = so.simulate(scenario)
        assert isinstance(result, so.InferenceResult)
        size, link = max((size, link) for link, size in bytes_per_token(result).items())
        print(f"batch {batch}: {size / 1e9:.3g} GB for a token over {link}")
