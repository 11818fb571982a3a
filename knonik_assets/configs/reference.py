"""The configuration reference: every key of every block, from the models that check them.

``python -m knonik_assets.configs.reference`` prints ``docs/configuration.md``; a test keeps the two equal.
"""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from knonik_assets.configs.card import CheckThresholds, DatasetCard
from knonik_assets.configs.ingest import (
    DepthEntry,
    ImageEntry,
    IngestConfig,
    LanguageBlock,
    Layout,
    StagedDepth,
    StagedNumeric,
    StagedPictures,
    StagedStreams,
)
from knonik_assets.configs.live import LiveConfig
from knonik_assets.configs.pack import PackOptions
from knonik_assets.configs.presets import DepthPreset, NumericPreset, RgbPreset
from knonik_loader.config_models import AzureParams, GcsParams, LoaderConfig, LocalParams, S3Params, StreamOptions

__all__ = ["configuration_reference"]

_SECTIONS: tuple[tuple[str, str, type[BaseModel]], ...] = (
    (
        "Ingest config",
        "The file that `knonik ingest --config` reads, and the `ingest` block of a dataset card.",
        IngestConfig,
    ),
    ("`layout`", "", Layout),
    ("An entry of `layout.images`", "A bare string is its `key`.", ImageEntry),
    ("An entry of `layout.depths`", "A bare string is its `key`.", DepthEntry),
    ("`streams`", "For `dir_type: npy_separate`.", StagedStreams),
    ("An entry of `streams.rgb`", "", StagedPictures),
    ("An entry of `streams.depth`", "", StagedDepth),
    ("An entry of `streams.numeric`", "", StagedNumeric),
    ("`language`", "`false` writes no annotations.", LanguageBlock),
    ("Live config", "The file that `knonik ingest live --config` and `run_live` read.", LiveConfig),
    ("`preset.rgb`", "", RgbPreset),
    ("`preset.depth`", "", DepthPreset),
    ("`preset.numeric`", "", NumericPreset),
    ("Pack options", "Keywords of `pack()`; the command line spells them with dashes.", PackOptions),
    ("Dataset card", "One YAML file a dataset; relative paths go from the card's folder.", DatasetCard),
    ("`checks`", "", CheckThresholds),
    (
        "`loader_cfg`",
        "What `ShardedDataLoader` and `MultiShardedDataLoader` take; `null` means the default.",
        LoaderConfig,
    ),
    ("`stream_cfg`", "Stream → these options; an empty `stream_cfg` takes every stream as it is.", StreamOptions),
    ("`fs_params` of `fs_type: local`", "", LocalParams),
    ("`fs_params` of `fs_type: s3`", "Credentials come from the standard chain.", S3Params),
    ("`fs_params` of `fs_type: gcs`", "", GcsParams),
    ("`fs_params` of `fs_type: azure`", "", AzureParams),
)
_NOT_WRITTEN: dict[type[BaseModel], set[str]] = {DatasetCard: {"path"}}
"""Fields that no file holds: the product fills them in."""
_DEFAULTED: dict[type[BaseModel], dict[str, str]] = {
    DatasetCard: {"name": "the file's name", "episodes": "below the lake", "packed": "below the lake"}
}
_WORDS = {str: "text", int: "integer", float: "number", bool: "`true`, `false`", type(None): "`null`", Any: "anything"}


def configuration_reference() -> str:
    """The page, as Markdown."""
    lines = [
        "# Configuration reference",
        "",
        "Made from the models that check every value, by `python -m knonik_assets.configs.reference`. An unknown key",
        "is an error that names the nearest known one.",
    ]
    for title, about, model in _SECTIONS:
        lines += ["", f"## {title}", ""]
        if about:
            lines += [about, ""]
        lines += ["| key | type | default | meaning |", "|---|---|---|---|"]
        lines += _rows(model)
    return "\n".join(lines) + "\n"


def _rows(model: type[BaseModel]) -> Iterator[str]:
    for name, info in model.model_fields.items():
        if name in _NOT_WRITTEN.get(model, ()):
            continue
        default = _DEFAULTED.get(model, {}).get(name) or _default(info)
        meaning = " ".join((info.description or "").replace("``", "`").split())
        cells = (f"`{name}`", _kind(info.annotation, info.metadata), default, meaning)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    value = info.get_default(call_default_factory=True, validated_data={})
    if value is None:
        return "none"
    if isinstance(value, BaseModel) or value in ({}, (), [], ""):
        return "none" if not isinstance(value, BaseModel) else "its defaults"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _kind(annotation: Any, metadata: list[Any]) -> str:  # noqa: ANN401 - any type
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        inner = [more for item in arguments[1:] for more in (item.metadata if isinstance(item, FieldInfo) else [item])]
        return _kind(arguments[0], [*metadata, *inner])
    if origin is typing.Literal:
        return ", ".join(f"`{str(value).lower() if isinstance(value, bool) else value}`" for value in arguments)
    if origin in (typing.Union, types.UnionType):
        kinds = [_kind(argument, metadata) for argument in arguments if argument is not type(None)]
        return " or ".join(dict.fromkeys(kinds))
    if origin is dict:
        return f"{_kind(arguments[0], [])} → {_kind(arguments[1], [])}"
    if origin in (list, tuple):
        several = [argument for argument in arguments if argument is not Ellipsis]
        words = ", ".join(_kind(argument, []) for argument in several)
        return f"[{words}]" if origin is tuple and Ellipsis not in arguments else f"list of {words}"
    if origin is Callable or annotation is Callable or str(annotation).startswith("collections.abc.Callable"):
        return "function"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "block"
    named = {"Path": "path", "Place": "path or URL"}.get(getattr(annotation, "__name__", ""), str(annotation))
    word = _WORDS.get(annotation, named)
    return word + _bounds(metadata)


def _bounds(metadata: list[Any]) -> str:
    signs = {Ge: "≥", Gt: ">", Le: "≤", Lt: "<"}
    found = []
    for item in metadata:
        for kind, sign in signs.items():
            if isinstance(item, kind):
                value = (
                    next(iter(vars(item).values()))
                    if hasattr(item, "__dict__")
                    else getattr(item, kind.__name__.lower())
                )
                if abs(value) < 2**31 - 1:
                    found.append(f"{sign} {value}")
        if isinstance(item, MinLen) and item.min_length:
            found.append("not empty")
    return f" {', '.join(found)}" if found else ""


if __name__ == "__main__":
    sys.stdout.write(configuration_reference())
