"""Behaviour cloning in chunks: a small policy that learns from a packed dataset on a CPU.

    python examples/train_bc.py                                  # packs the sample recordings, then trains on them
    python examples/train_bc.py --loader torch --workers 2       # PyTorch's DataLoader instead of ShardedDataLoader
    torchrun --standalone --nproc-per-node 2 examples/train_bc.py    # two ranks, the same global batches
    python examples/train_bc.py --resume                         # goes on after the last checkpoint, bit for bit

What is held out. The sample has two demonstrations of 60 frames. Each is cut into five pieces, of which the second and
the fourth (8 frames each) are held out. Pieces are episodes of their own: windows end with their piece, so no window of
the held-out frames, and no step of it, is seen in training, and statistics are made without them. They still lie
between frames that were trained on. The error therefore says how well the policy fills gaps of a demonstration that it
knows, not how well it does on a new one; two demonstrations can't teach that.

For a dataset of your own give --train and --held-out, two manifests, or one with --splits train val.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from knonik_loader import KnonikError, ShardedDataLoader
from knonik_loader.torch import (
    EpisodeDistributedSampler,
    KhlpDataset,
    Normalize,
    Unnormalize,
    normalization_stats,
    worker_init_fn,
)

SAMPLE = Path(__file__).resolve().parent.parent / "dagster_home" / "sample" / "aloha_sim"
PIECES = [(0, 18), (18, 26), (26, 40), (40, 48), (48, 60)]
HELD_OUT = (1, 3)
KEPT = ("loader", "batch", "chunk", "seed", "camera", "state", "action", "splits")
"""Arguments with which a run goes on as it began."""


def prepare(folder: Path) -> tuple[Path, Path]:
    """Cut, ingest and pack the sample recordings; gives the manifests to train on and to test with."""
    import h5py

    from knonik.ingest import pack, run

    raw, names = folder / "raw", {"train": [], "held_out": []}
    raw.mkdir(parents=True, exist_ok=True)
    for number, (recording, piece) in enumerate((r, p) for r in (0, 1) for p in range(len(PIECES))):
        names["held_out" if piece in HELD_OUT else "train"].append(f"episode_{number:06d}")
        start, stop = PIECES[piece]
        source, target = SAMPLE / f"episode_{recording}.hdf5", raw / f"episode_{number}.hdf5"
        with h5py.File(source) as whole, h5py.File(target, "w", track_order=False) as part:
            for name in ("observations/images/top", "observations/qpos", "action"):
                part[name] = whole[name][start:stop]
    config = {
        "dir_type": "episodic",
        "data_type": "hdf5",
        "fps": 50,
        "jpeg_channel_order": "bgr",
        "preset": {"rgb": {"codec": "jpeg"}},
        "metadata": {"dataset": "aloha_sim"},
    }
    run(config, input=raw, output=folder / "episodes", engine="inline")
    for name, episodes in names.items():
        keys = {"storage_profile": "training_fast", "episodes": episodes, "engine": "inline"}
        pack(folder / "episodes", folder / name, f"aloha_sim_{name}", **keys)
    return folder / "train" / "hlp_manifest.json", folder / "held_out" / "hlp_manifest.json"


class Policy(nn.Module):
    """One picture and one state → a chunk of actions, all scaled."""

    def __init__(self, state: int, action: int, chunk: int) -> None:
        super().__init__()
        self.shape = (chunk, action)
        self.eye = nn.Sequential(
            nn.Conv2d(3, 16, 5, stride=4), nn.ReLU(), nn.Conv2d(16, 16, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(6)
        )
        self.look = nn.Sequential(nn.Flatten(), nn.Linear(16 * 36, 32), nn.Tanh())
        self.act = nn.Sequential(
            nn.Linear(32 + state, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, chunk * action)
        )

    def forward(self, pictures: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """(B, H, W, 3) uint8 and (B, S) → (B, T, A)."""
        small = pictures[:, ::8, ::8].permute(0, 3, 1, 2).float() / 255 - 0.5
        return self.act(torch.cat([self.look(self.eye(small)), states], 1)).view(-1, *self.shape)


def window(args: argparse.Namespace) -> dict[str, Any]:
    """What a sample is: the picture and state of now, and the actions from now on, padded at an episode's end."""
    now = {f"rgb_{args.camera}": [0.0], args.state: [0.0]}
    streams = {f"rgb_{args.camera}": {}, args.state: {}, args.action: {}}
    return {"streams": streams, "chunk_len": args.chunk, "delta_timestamps": now, "pad_missing": True}


class ShardedBatches:
    """Batches of `ShardedDataLoader`, epoch after epoch, and their place."""

    def __init__(self, args: argparse.Namespace, batch_size: int) -> None:
        keys = window(args)
        streams = keys.pop("streams")
        keys |= {
            "decode_mode": "random_access",
            "hlp_manifest": args.train,
            "batch_size": batch_size,
            "seed": args.seed,
        }
        keys |= {"framework": "torch", "drop_last": True, "split": args.splits[0]}
        self._loader = ShardedDataLoader(keys, streams)
        self.state_dict = self._loader.state_dict
        self.load_state_dict = self._loader.load_state_dict

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while True:
            yield from self._loader


class TorchBatches:
    """The same batches from PyTorch's DataLoader; what it prefetches doesn't count, only what was used."""

    def __init__(self, args: argparse.Namespace, batch_size: int) -> None:
        dataset = KhlpDataset(args.train, split=args.splits[0], **window(args))
        self._sampler = EpisodeDistributedSampler(
            dataset, seed=args.seed, drop_last=True, shard_by="sample", batch_size=batch_size
        )
        self._loader = DataLoader(
            dataset,
            batch_size=batch_size,
            sampler=self._sampler,
            num_workers=args.workers,
            persistent_workers=args.workers > 0,
            worker_init_fn=worker_init_fn,
        )
        self._size, self._epoch, self._used = batch_size, 0, 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while True:
            self._sampler.set_epoch(self._epoch, self._used * self._size)
            for batch in self._loader:
                self._used += 1
                yield batch
            self._epoch, self._used = self._epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self._epoch, "used": self._used}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._epoch, self._used = state["epoch"], state["used"]


def loss_of(policy: nn.Module, batch: dict[str, Any], args: argparse.Namespace) -> torch.Tensor:
    """Mean absolute error over real steps; padded ones count as zeros, so that means of ranks average to the whole."""
    guess = policy(batch[f"rgb_{args.camera}"][:, 0], batch[args.state][:, 0])
    real = batch[f"{args.action}_valid_mask"].unsqueeze(-1)
    return ((guess - batch[args.action]).abs() * real).mean()


def train(args: argparse.Namespace, rank: int, world: int) -> tuple[nn.Module, list[float]]:
    """Optimise, with a checkpoint every so many steps; gives the policy and the loss of every step."""
    stats = normalization_stats(args.train, split=args.splits[0] or "train", streams=[args.state, args.action])
    scale = Normalize(stats)
    torch.manual_seed(args.seed)
    policy: nn.Module = Policy(len(stats[args.state].mean), len(stats[args.action].mean), args.chunk)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3, weight_decay=1e-2)
    batches = (ShardedBatches if args.loader == "sharded" else TorchBatches)(args, args.batch // world)
    losses: list[float] = []
    checkpoint = args.out / "checkpoint.pt"
    if args.resume and not checkpoint.exists() and rank == 0:
        print(f"no checkpoint in {args.out} yet: this run begins at the first step")
    if args.resume and checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        for name in KEPT:
            if saved["arguments"][name] != getattr(args, name):
                began = f"--{name} {saved['arguments'][name]}"
                raise SystemExit(
                    f"error: the run in {args.out} began with {began}; go on with it, or start in another --out"
                )
        policy.load_state_dict(saved["policy"])
        optimizer.load_state_dict(saved["optimizer"])
        batches.load_state_dict(saved["batches"])
        losses = saved["losses"]
    model = DistributedDataParallel(policy) if world > 1 else policy
    for batch in batches:
        if len(losses) >= args.steps:
            break
        loss = loss_of(model, scale(batch), args)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        told = loss.detach().clone()
        if world > 1:
            dist.all_reduce(told)
        losses.append(float(told) / world)
        if rank == 0 and len(losses) % args.checkpoint_every == 0:
            states = {"policy": policy.state_dict(), "optimizer": optimizer.state_dict()}
            part = checkpoint.with_suffix(".part")
            kept = {name: getattr(args, name) for name in KEPT}
            torch.save({**states, "batches": batches.state_dict(), "losses": losses, "arguments": kept}, part)
            part.replace(checkpoint)
    return policy, losses


@torch.no_grad()
def evaluate(policy: nn.Module, args: argparse.Namespace) -> float:
    """Mean squared error on held-out frames, as a share of that of always predicting the mean action.

    Each joint counts by its own spread in the training data.
    """
    stats = normalization_stats(args.train, split=args.splits[0] or "train", streams=[args.state, args.action])
    scale, back = Normalize(stats), Unnormalize(stats, {args.action: "mean_std"})
    error = baseline = 0.0
    for batch in DataLoader(KhlpDataset(args.held_out, split=args.splits[1], **window(args)), batch_size=32):
        scaled = scale(batch)
        guess = policy(batch[f"rgb_{args.camera}"][:, 0], scaled[args.state][:, 0])
        # A robot would be sent back.stream(args.action, guess), in its own unit.
        assert back.stream(args.action, guess).shape == batch[args.action].shape
        real = batch[f"{args.action}_valid_mask"].unsqueeze(-1)
        error += float(((guess - scaled[args.action]).square() * real).sum())
        baseline += float((scaled[args.action].square() * real).sum())  # the mean action is 0 when scaled
    return error / baseline


def draw(losses: list[float], path: Path) -> None:
    """The loss curve on a logarithmic scale."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    axes.semilogy(range(1, len(losses) + 1), losses, linewidth=0.8)
    axes.set(xlabel="step", ylabel="mean absolute error of scaled actions", title="training loss")
    axes.grid(visible=True, alpha=0.3)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--out", type=Path, default=Path("train_bc"), help="folder for everything that is written (%(default)s)"
    )
    parser.add_argument("--train", help="manifest to train on; without it the sample recordings are packed")
    parser.add_argument("--held-out", help="manifest to test with; the same as --train where there is none")
    parser.add_argument("--splits", nargs=2, default=[None, None], metavar=("TRAIN", "HELD_OUT"), help="splits of them")
    parser.add_argument("--loader", choices=["sharded", "torch"], default="sharded")
    parser.add_argument("--workers", type=int, default=0, help="of --loader torch")
    parser.add_argument("--camera", default="top", help="its name in the dataset (%(default)s)")
    parser.add_argument("--state", default="qpos", help="numeric stream that the policy sees (%(default)s)")
    parser.add_argument("--action", default="action", help="numeric stream that it learns (%(default)s)")
    parser.add_argument("--chunk", type=int, default=8, help="actions predicted at once")
    parser.add_argument("--batch", type=int, default=16, help="samples of a step over all ranks")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch; sums depend on it in their last bits")
    parser.add_argument("--checkpoint-every", type=int, default=50, help="steps")
    parser.add_argument("--resume", action="store_true", help="go on after the last checkpoint in --out")
    args = parser.parse_args()
    args.held_out = args.held_out or args.train
    return args


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if args.steps < 1:
        raise SystemExit(f"error: --steps {args.steps} is no number of steps to train")
    if args.batch % world:
        raise SystemExit(f"error: --batch {args.batch} does not divide by {world} ranks")
    args.out.mkdir(parents=True, exist_ok=True)
    if world > 1:
        dist.init_process_group("gloo")
    if args.train is None:
        if rank == 0:
            prepare(args.out)
        if world > 1:
            dist.barrier()
        args.train, args.held_out = (str(args.out / name / "hlp_manifest.json") for name in ("train", "held_out"))
    policy, losses = train(args, rank, world)
    if rank == 0:
        share = evaluate(policy, args)
        draw(losses, args.out / "loss.png")
        result = {"held_out_error": share, "losses": losses}
        (args.out / "result.json").write_text(json.dumps(result))
        print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f} in {len(losses)} steps")
        seen = args.held_out == args.train and args.splits[0] == args.splits[1]
        print(f"error on {'frames trained on' if seen else 'held-out frames'}: {share:.3f} of that of the mean action")
        print(f"loss curve: {args.out / 'loss.png'}")
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main()
    except KnonikError as error:
        raise SystemExit(f"error: {error}") from None
