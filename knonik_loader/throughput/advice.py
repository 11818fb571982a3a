"""What to change, from what a run showed: the tuning rules that people follow by hand, as code."""

from __future__ import annotations

from knonik_loader.throughput.measure import Measurement

__all__ = ["advise"]

_NEAR_LIMIT = 0.85
_LOCALITIES = ("ultra_low_mem", "low_mem", "hlp_bounded", "global")


def advise(run: Measurement) -> list[str]:
    """Sentences, the weightiest first; empty where nothing is wrong."""
    return [*_speed(run), *_memory(run), *_diversity(run), *_smoothness(run)]


def _speed(run: Measurement) -> list[str]:
    if not run.cameras or not run.limit_frames_per_s:
        return []
    share = f"{run.of_limit:.0%} of this machine's decode limit"
    decoders = run.threads["decode"]
    if run.limiting == "decode" and run.of_limit < 1.1:
        gain = (
            " training_compressed decodes faster where cameras stand still."
            if run.profile == "training_fast"
            else " training_fast or training_compressed decode faster than compact_video."
            if run.profile == "compact_video"
            else ""
        )
        return [
            f"Decoding limits ({share}): more cores, fewer cameras (image_key), smaller pictures (knonik pack --resize)"
            f" or a larger stride help; the loader itself costs little.{gain}"
        ]
    if run.limiting == "fetch":
        return [
            f"Reading limits ({share}): raise num_fetchers (now {run.threads['fetch']}) and prefetch_shards; check the "
            "storage; planner_locality hlp_bounded reads fewer files at once."
        ]
    if run.limiting == "augment":
        return [f"augment_fn limits ({share}): raise augment_workers, or make it cheaper; process escapes the GIL."]
    if run.of_limit < _NEAR_LIMIT:
        more = f"raise num_decoders (now {decoders}), " if decoders < run.cores else ""
        return [
            f"No stage is at its limit ({share}), so they wait for each other: {more}raise prefetch_shards, "
            "precollate_batches or partial_decode_coalesce_batches."
        ]
    return []


def _memory(run: Measurement) -> list[str]:
    found = []
    if run.rss_peak > run.ram / 2:
        found.append(
            f"The process holds {run.rss_peak / 1e9:.1f} of {run.ram / 1e9:.1f} GB: lower ram_cache_bytes, "
            "prefetch_shards or precollate_batches, set low_memory: true, or tighten planner_locality."
        )
    grown = run.rss_end / run.rss_start - 1
    if grown > 0.1:
        found.append(
            f"Memory grew by {grown:.0%} after the first fifth of the run: the index of a KHLP file is kept from when "
            "it is first needed. Let it run longer (--seconds) to see it level off; hlps_in_flight bounds it."
        )
    return found


def _diversity(run: Measurement) -> list[str]:
    possible = min(run.batch_size, run.episodes)
    correlated = run.near_duplicates > 0.1 and run.episodes_per_batch < 0.8 * possible
    if run.config.get("shuffle_mode") == "none" or not correlated:
        return []
    locality = run.config.get("planner_locality") or "global"
    text = (
        f"Batches are correlated: {run.episodes_per_batch:.1f} episodes each, {run.near_duplicates:.0%} of samples have"
        " a near twin in their batch"
    )
    if locality == "global":
        return [f"{text}; the shuffle is global already, so a larger stride or more episodes are what helps."]
    looser = _LOCALITIES[_LOCALITIES.index(locality) + 1]
    recent = run.config.get("planner_recent_batches") or 4
    return [f"{text}: loosen planner_locality ({locality} -> {looser}) or raise planner_recent_batches (now {recent})."]


def _smoothness(run: Measurement) -> list[str]:
    found = []
    if run.cross_shard > 0.3:
        found.append(
            f"{run.cross_shard:.0%} of windows reach into a second shard, which is right but costs more: pack with a "
            "larger --shard-size, or use a shorter chunk_len."
        )
    if run.batches >= 20 and run.batch_p99_s > 5 * run.batch_p50_s:
        found.append(
            f"Batches come unevenly (half within {run.batch_p50_s * 1e3:.0f} ms, one in a hundred after "
            f"{run.batch_p99_s * 1e3:.0f} ms): grow precollate_batches, prefetch_shards or ram_cache_bytes, and check "
            "the storage."
        )
    if run.first_batch_s > 5:
        found.append(
            f"The first batch took {run.first_batch_s:.0f} s: that is opening the dataset, once a loader; where it "
            "never comes, lower num_decoders or num_fetchers."
        )
    if run.inactive:
        found.append(f"These keys have no effect here: {', '.join(run.inactive)}.")
    return found
