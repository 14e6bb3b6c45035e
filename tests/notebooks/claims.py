"""What the text of the notebooks says: statements that hold behind the last cell of a section."""

CLAIMS = {
    "01-quick-start": {
        "Does it fit?": """
assert [so.fit(scenario.on(tier)).fits for tier in tiers] == [False, True, True, True]
""",
        "What limits it?": """
for step in steps.values():
    assert sum(group.exposed_ps for group in step.groups) == step.time_ps
tpot = {tier: result.tpot_s for tier, result in comparison.results.items()}
assert round(tpot["gen4"] / tpot["gen5"], 1) == 1.4
assert comparison.results["gen5"].bottleneck == "host to GPU, pageable"
""",
        "What would help?": """
by_key = {one.change.key: one for one in advice.helping}
four_bits = {"vllm-int4-g128", "split-accelerate-1-int4-g128"}
others = [one for one in advice.helping if not one.change.same_work]
assert {one.change.key for one in others[:2]} == four_bits
assert by_key["batch-32"] is advice.helping[0]
assert round(by_key["use_gds"].gain, 1) == 2.3
assert so.simulate(direct).unit_s == by_key["use_gds"].result.unit_s
""",
    },
    "02-ddn-study": {
        "What fits where": """
assert fits.to_numpy().tolist() == [
    [True, True, True, True, True],
    [False, True, True, True, True],
    [False, False, True, True, True],
    [False, False, False, True, True],
]
assert machines["rule"].tolist() == [1, 2, 8, 143]
""",
        "How fast is it?": """
order = ["hbm", "dram", "ai400x2", "raid", "nfs"]
for comparison in comparisons.values():
    asked = [target for target in comparison.ranking if target in order]
    assert asked == [target for target in order if comparison.results[target].fits]
""",
        "What matches and what does not": """
over = table["over"]
assert over.iloc[:3].lt(1).all()  # "less than"
assert over.iloc[3:6].between(1 / 3, 3).all()  # absolute times
assert over.iloc[6:].max() < 4.1  # ratios: the worst is NFS for 176B
assert table["predicted"].iloc[6:].round(1).tolist() == [1.3, 2.8, 40.3, 2.6, 36.2]
assert over.iloc[6:].gt(1.3).all()  # all of them are predicted further apart than published
""",
        "Where the time goes": """
assert shares.sum(axis=1).sub(1).abs().max() < 1e-9
""",
        "24 trillion parameters": """
assert days["nfs"] > 1
""",
    },
    "03-24-trillion-parameters": {
        "24 trillion parameters: which batch and which bandwidth would make them usable?": """
assert today.tpot_s > 90 * READER_S
assert today.decode_tokens_per_s < JOB_PER_S / 50
""",
        "Storage bandwidth": """
assert curve.fastest / curve.own.throughput < 1.06
assert (today.bottleneck, today.step.bottleneck.limit) == ("host to GPU", "cpu -> plx0")
""",
        "For a reader: not usable": """
assert factor[["ai400x2 read", "cpu <-> plx0", "gpu0 link in", "host thread"]].round().tolist() == [
    54,
    64,
    15,
    6,
]
assert round(hbm["a100-40g-sxm"]) == 31
assert hbm["h200-sxm"] > READER_S > hbm["b200-sxm"]
""",
        "For a batch job: the batch": """
assert max(one.tpot_s for one in steps.values()) < 1.01 * today.tpot_s
assert steps[64].decode_tokens_per_s < JOB_PER_S < steps[115].decode_tokens_per_s
assert 750e9 < memory[115] < 850e9
assert round(scenario().model.kv_cache_bytes(batch=1, tokens=1) / 1e6) == 393
assert so.largest(scenario()).batch.most == 3
assert so.largest(scenario(*H200)).batch.most == 19
""",
        "Machines and appliances": """
rate, price = table["tokens/s"], table["USD per million tokens"]
assert rate[4, 1] > JOB_PER_S > rate[2, 8]
assert price.idxmin() == (8, 4)
assert 6750 < price.min() < 6850
assert rate[1, 2] == rate[1, 1]
assert rate[4, 4] > 2.9 * rate[4, 1]
assert rate[4, 8] == rate[4, 4]
assert round(scenario().model.kv_cache_bytes(batch=1, tokens=1000) / 1e9) == 393
assert so.confidence(today).extrapolates
""",
    },
    "04-storage-purchases": {
        "Three purchases": """
speed, price = frame["tokens_per_s"], frame["cost_per_million_tokens"]
assert list(comparison.ranking) == ["ai400x2", "raid", "nfs"]
assert round(speed["ai400x2"] / speed["raid"], 1) == 1.5
assert round(price["ai400x2"] / price["raid"], 1) == 2.9
assert price["nfs"] > 40 * price["raid"]
assert not any(one.missing for one in comparison.economics.values())
assert bill.total == 90_000 + 4 * 3.84 * 260
""",
        "Break-even prices": """
assert abs(again["ai400x2"] / again["raid"] - 1) < 1e-6
assert round(at, -3) == 39_000
""",
        "What else would help?": """
gains = {one.change.key: one for one in advice.tried}
assert gains["on-ai400x2"].gain > gains["raid-solidigm-ps1010-7.68tb"].gain > 1.3
assert gains["raid-solidigm-ps1010-7.68tb"].extra < 16_000
assert "raid-16-drives" in {one.key for one in advice.impossible}
""",
        "A budget and a service level": """
assert all(point.purchase <= 150_000 for point in search.points)
assert all(point.result.tpot_s <= 100 for point in search.front)
best = search.best
assert best.description == ("RAID0 of 8 x solidigm-ps1010-7.68tb", "batch 32 per GPU")
assert round(best.purchase - 90_000, -3) == 16_000
assert round(best.rate / speed["ai400x2"], 1) == 0.9
assert so.simulate(best.scenario).unit_s == best.result.unit_s
""",
    },
    "05-training-offload": {
        "Why drives are needed": """
assert [so.fit(scenario.on(f"hbm+{tier}")).fits for tier in ("hbm", "dram", "nvme")] == [False, False, True]
""",
        "Four cases, published and predicted": """
error = cases["step_s"] / cases["published"] - 1
assert error.between(-0.135, 0.065).all()
published = [(325_488, 650_993), (595_728, 813_741)]
for requests, (read, written) in zip(counted.values(), published, strict=True):
    assert requests.read == read
    assert abs(requests.written / written - 1) < 5e-5
""",
        "RAID0 compared with one drive": """
assert 2.0 < gain < 2.1
assert 2.1 < gain_both < 2.3
assert comparison.results[f"optimizer on {RAID}"].step.bottleneck.limit == "chipset -> cpu"
""",
        "Small models: memory, one drive, three drives": """
assert all(table[size].is_monotonic_increasing for size in sizes)
assert 2.25 < slower < 2.35
assert (cases["optimizer_s"] / cases["published "] - 1).iloc[2:].between(-0.15, -0.10).all()
""",
        "How long do the drives last?": """
assert worn.verdict == "within_a_year"
assert 6 < worn.days < 7
assert wear_cost > 5 * other_cost
assert accumulated["tokens/s"][32] > 15 * accumulated["tokens/s"][1]
assert accumulated["MB written per token"].iloc[-1] < accumulated["MB written per token"].iloc[0] / 10
assert step[first] < better.step_s < 1.05 * step[first]
assert 80 < better.drive_lifetime[0].drive_lifetime.days < 12.2 * worn.days
""",
    },
    "06-drive-from-fio": {
        "One file": """
assert profile.measured == ("read",)
assert profile.estimated == ("write",)
""",
        "Several depths, and writes": """
assert profile.measured == ("read", "read_latency", "write", "write_latency", "read_by_outstanding")
assert comparison.results["mine"].bottleneck == "mine read"
assert 0.8 < comparison.ratio("gen4") < 1
assert mine.loc["read", "origin"] == "measured"
""",
        "How deep must the queue be?": """
assert times[1] > 2 * times[32]
assert times[8] > times[32]
""",
        "Sensitivity to the drive": """
assert table.iloc[0]["profile"].endswith("my-drive")
""",
    },
    "07-cache-in-host-memory": {
        "What fits": """
cache = 2 * 64 * 9216 * (512 + 32 - 1)  # elements of a sequence
assert [uses[batch, "dram"].fits for batch in (80, 128, 140)] == [False, False, False]
assert [uses[batch, "gen5"].fits for batch in (80, 128, 140)] == [True, False, False]
room = uses[80, "gen5"].capacity - uses[80, "gen5"].needed
assert 28e9 < room < 34e9
terms = {term.name: term.size for term in uses[80, "gen5"].terms}
assert terms["key-value cache"] == 80 * cache * 4
assert 100e9 < 80 * cache * 2 < 105e9
assert rates.loc[("66b", 80)].notna().tolist() == [False, True, True]
""",
        "Host memory against drives, and the batch": """
growth = rates.loc["13b"].loc[140] / rates.loc["13b"].loc[80]
assert (rates["dram"] > rates["gen5"]).loc["13b"].all()
assert rates["dram"]["30b", 80] > rates["gen5"]["30b", 80]
assert relative.is_monotonic_increasing
assert round(relative[80], 1) == 0.6
assert round(relative[140], 1) == 0.7
assert growth["gen5"] > 1.3 > growth["dram"]
""",
        "PCIe 4 against PCIe 5": """
assert gain.between(1.1, 1.6).all()
assert (round(gain.min(), 1), round(gain.max(), 1)) == (1.4, 1.6)
assert gain.loc["13b"].is_monotonic_decreasing
assert gain.loc["30b"].is_monotonic_decreasing
assert 0.6 < weights / 14e9 / decode.time_s < 0.9
assert result.ttft_s > 8 * decode.time_s
""",
        "Cost": """
six, dram, gen5 = (table.iloc[row] for row in range(3))
assert 0.7 < dram["relative"] < 0.8
assert round(gen5["relative"], 1) == 0.5
assert 1.9 < six["purchase"] / gen5["purchase"] < 2.2
assert round(six["tokens_per_s"] / dram["tokens_per_s"]) == 3
assert round(six["tokens_per_s"] / gen5["tokens_per_s"]) == 4
assert [round(6 * one["tokens_per_s"] / six["tokens_per_s"], 1) for one in (dram, gen5)] == [2.0, 1.6]
assert six["purchase"] / gen5["purchase"] * gen5["tokens_per_s"] / 4.8 < gen5["tokens_per_s"]
assert 298e9 < 200 * 2 * 48 * 7168 * (512 + 32 - 1) * 4 < 300e9
""",
    },
}
"""By notebook and heading of the section."""
