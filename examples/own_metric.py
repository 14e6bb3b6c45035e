"""A metric of your own: a function of a result, here what a token moves over each link."""

import simoffload as so


def bytes_per_token(result: so.InferenceResult) -> dict[str, float]:
    """Return the bytes [B] that cross each link in a decode step, for each token that it generates."""
    tokens = result.batch_size * result.replicas
    return {one.link: one.size / tokens for one in result.step.links if one.unit == "B"}


if __name__ == "__main__":
    for batch in (8, 32):
        scenario = so.load_scenario("ddn/bloom-7b1", overrides=[f"workload.batch_size={batch}"])
        found = bytes_per_token(so.simulate(scenario))
        link = max(found, key=found.get)
        print(f"batch {batch}: {found[link] / 1e9:.3g} GB for a token over {link}")
