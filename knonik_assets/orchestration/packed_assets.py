"""The packed datasets: one asset a storage profile, all from one factory."""

import time
import warnings
from typing import TYPE_CHECKING, Any

import dagster as dg

from knonik_assets.configs.card import PROFILES, DatasetCard
from knonik_assets.configs.cards import CardFolder
from knonik_assets.orchestration.assets import WHEN_NEW, episode_names, episodes_there, left_out
from knonik_assets.orchestration.context import (
    CODE_VERSIONS,
    RETRIES,
    LogProgress,
    card_of,
    observation,
    plain_failures,
)
from knonik_assets.orchestration.freshness import freshness
from knonik_assets.orchestration.inputs import ANNOUNCED, input_key
from knonik_assets.orchestration.show import card_metadata, compression_table, packed_picture, table
from knonik_assets.quality.finding import size_text
from knonik_assets.storage import Place
from knonik_loader.khlp.types import StorageProfile

if TYPE_CHECKING:
    from knonik_assets.quality.packed import PackedDataset

__all__ = ["asset_name", "not_packed", "packed_assets"]

_DESCRIPTIONS: dict[StorageProfile, str] = {
    "compact_video": "KHLP with a short video a shard and camera: the smallest, for storage and for slow networks.",
    "training_fast": "KHLP with every frame its own JPEG: the fastest random access.",
    "training_compressed": "KHLP with keyframes and what changed since them: half the size of JPEGs on still cameras, "
    "at most two decodes for any frame.",
}
_EVERY_PACK = """

A training job needs the path of the manifest below and nothing else. A pack that changes something is a new generation
beside the old one, so that a job on the old manifest finishes undisturbed; generations that were superseded are removed
after the card's `keep_days`. Without changes nothing is written. Datasets whose card does not ask for this profile are
skipped.
"""


def asset_name(profile: StorageProfile) -> str:
    """The asset of a profile."""
    return f"khlp_{profile}"


def packed_assets(
    cards: CardFolder, partitions: dg.PartitionsDefinition[str], owners: list[str]
) -> list[dg.AssetsDefinition]:
    """An asset for every profile; it yields nothing for a card that doesn't ask for it."""
    return [_packed_asset(profile, cards, partitions, owners) for profile in PROFILES]


def _packed_asset(
    profile: StorageProfile, cards: CardFolder, partitions: dg.PartitionsDefinition[str], owners: list[str]
) -> dg.AssetsDefinition:
    fresh = freshness(cards, profile)

    @dg.asset(
        name=asset_name(profile),
        description=_DESCRIPTIONS[profile] + _EVERY_PACK,
        partitions_def=partitions,
        deps=["ingested_episodes", "dataset_config", input_key("exclude"), input_key(f"pack_{profile}")],
        required_resource_keys={ANNOUNCED},
        pool="pack",
        retry_policy=RETRIES,
        code_version=CODE_VERSIONS[asset_name(profile)],
        group_name="packed",
        kinds={"khlp"},
        owners=owners,
        # different partitions definitions can't run in one job, so every card is a partition of every profile
        output_required=False,
        automation_condition=WHEN_NEW,
        freshness_policy=fresh.policy,
        metadata=fresh.metadata,
    )
    def packed(context: dg.AssetExecutionContext) -> Any:  # noqa: ANN401 - Dagster wants no iterator type here
        with plain_failures():
            card = card_of(context, cards)
            if profile not in card.pack:
                context.log.info("%s does not ask for %s: nothing to do", card.name, profile)
                return
            yield _pack(context, card, profile)

    return packed


def _pack(context: dg.AssetExecutionContext, card: DatasetCard, profile: StorageProfile) -> dg.MaterializeResult[Any]:
    from knonik_assets.collecting import collect_generations
    from knonik_assets.pack import pack
    from knonik_assets.quality.packed import PackedDataset

    options = {key: value for key, value in card.pack[profile].items() if key != "exclude"}
    out = not_packed(card, profile)
    for name, reason in out.items():
        context.log.warning("%s is left out: %s", name, reason)
    _warn_of_unknown(context, card)
    before = _generation(card.packed_folder(profile))
    started = time.perf_counter()
    with warnings.catch_warnings(record=True) as noticed:
        warnings.simplefilter("always", UserWarning)
        manifest = pack(
            str(card.episodes),
            str(card.packed_folder(profile)),
            card.name,
            storage_profile=profile,
            engine=card.engine,
            ray_options=card.ray,
            exclude=out,
            overwrite=True,
            progress=LogProgress(context.log, report=observation(context)),
            **options,
        )[0]
    seconds = time.perf_counter() - started
    for notice in noticed:
        context.log.warning(str(notice.message))
    dataset = PackedDataset(manifest)
    unchanged = before == dataset.manifest.digest()
    keep = card.keep_days
    collected = [] if keep == "forever" else collect_generations(card.packed_folder(profile), keep)
    for each in collected:
        context.log.info("removed %s", each)
    if unchanged:
        context.log.info("nothing changed: generation %d stays", dataset.manifest.generation)
    return dg.MaterializeResult(
        metadata={
            **_packed_metadata(dataset, out),
            "unchanged": unchanged,
            **({"collected": ", ".join(str(each.generation) for each in collected)} if collected else {}),
            "seconds": round(seconds, 2),
            **({} if unchanged else {"frames_per_second": round(_pictures(dataset) / seconds, 1)}),
            "manifest": dg.MetadataValue.path(str(dataset.place)),
            **card_metadata(card),
        },
        data_version=dg.DataVersion(dataset.manifest.digest()),
    )


def _warn_of_unknown(context: dg.AssetExecutionContext, card: DatasetCard) -> None:
    """A name in ``exclude`` that no episode has is most likely a typing mistake."""
    if not card.exclude:
        return
    from knonik_assets.configs.validation import unknown

    names = episode_names(card.episodes)
    known = [*names, *names.values()]
    for name in card.exclude:
        if name not in known:
            context.log.warning("%s: exclude: %s", card.path, unknown(name, known, "episode"))


def not_packed(card: DatasetCard, profile: StorageProfile) -> dict[str, str]:
    """Episode → why it stays out of this profile's pack: for its quality, or because the card says so.

    Raises:
        EpisodeError: the episodes were not judged yet.
    """
    from knonik_assets.configs.pack import PackOptions

    options = card.pack[profile]
    said = PackOptions.model_validate(
        {"dataset_name": card.name, "exclude": options.get("exclude"), "episodes": options.get("episodes")}
    )
    there = episodes_there(card)
    unasked = [name for name in there if said.episodes is not None and name not in said.episodes]
    return {**dict.fromkeys(unasked, "not among the card's pack.episodes"), **said.exclude, **left_out(card)}


def _generation(folder: Place) -> str | None:
    """Digest of the manifest that is there, to see whether anything was packed."""
    from knonik_assets.quality.packed import PackedDataset
    from knonik_loader.errors import FormatError, StorageError

    try:
        return PackedDataset(folder / "hlp_manifest.json").manifest.digest()
    except (FormatError, StorageError):
        return None


def _pictures(dataset: "PackedDataset") -> int:
    """Frames over all cameras."""
    return dataset.manifest.num_frames * sum(stream.kind == "rgb" for stream in dataset.manifest.streams)


def _packed_metadata(dataset: "PackedDataset", out: dict[str, str]) -> dict[str, Any]:
    manifest = dataset.manifest
    raw = sum(
        manifest.num_frames * stream.shape[0] * stream.shape[1] * stream.shape[2]
        for stream in manifest.streams
        if stream.kind == "rgb"
    )
    return {
        **packed_picture(dataset),
        "generation": manifest.generation,
        "episodes": manifest.num_episodes,
        **({"left_out": table([{"episode": name, "reason": said} for name, said in out.items()])} if out else {}),
        "frames": manifest.num_frames,
        "shards": manifest.num_shards,
        "files": manifest.num_hlps,
        "bytes": dataset.bytes,
        "size": size_text(dataset.bytes),
        "bytes_per_frame": round(dataset.bytes / max(manifest.num_frames, 1)),
        "compression": round(raw / dataset.bytes, 2) if raw else 1.0,
        "streams": compression_table(dataset),
        "splits": ", ".join(f"{name} {share:g}" for name, share in manifest.splits.items()) or "none",
    }
