"""Readers of blocks of tokens, and of frames around a frame: those of trainers, and ours."""

import shutil
from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np
import torch.utils.data

import mmapds

from . import token_data
from .token_data import OFFSETS, lengths, whole

SIZE, BATCH = 2048, 8


class Reader(ABC):
    """What is measured of one; `folder` has its data."""

    title = ""
    package = ""
    how = ""
    items = SIZE  # of a sample
    batch = BATCH
    made: tuple[str, ...] = ()  # patterns of what it writes itself, below the folder

    def __init__(self, folder):
        self.folder = Path(folder)

    @abstractmethod
    def open(self):
        """Open the data, and make what is needed for blocks."""

    def __len__(self):
        return len(self.dataset)

    @abstractmethod
    def samples(self, numbers):
        """Return the samples at some positions, each as a dict with tokens and labels."""

    @abstractmethod
    def batches(self):
        """Yield batches of an epoch in random order, as (tokens, labels)."""

    def expected(self, position):
        """Return the tokens of a sample, and the one behind them."""
        return self.tokens[position * SIZE : (position + 1) * SIZE + 1]

    def state(self):  # noqa: B027 - most have none
        """Return what a checkpoint keeps to go on, or None where the trainer keeps a count."""

    @property
    def tokens(self):
        return whole(self.folder)

    def files(self):
        """Return what it has written itself."""
        return [path for pattern in self.made for path in self.folder.glob(pattern) if path.is_file()]

    def forget(self):
        """Remove what it has written itself."""
        for path in self.files():
            path.unlink()


# ---- ours --------------------------------------------------------------------------------------------------------


class Flat(Reader):
    title, package, how = "mmapds, the file alone", "mmap-datasets", "records of one size, of 2,048 tokens"
    path, options = "flat/blocks.bin", {"format": "fixed", "dtype": "uint16", "shape": SIZE, "truncated": "drop"}
    column: str | None = None
    made = ("flat/blocks.bin.mmx",)
    collate = None

    def open(self):
        path = self.folder / self.path
        if not Path(f"{path}.mmx").exists():
            mmapds.build(path, **self.options)
        self.dataset = self.view(mmapds.open(path))

    def view(self, dataset):
        return dataset.blocks(SIZE, column=self.column)

    def samples(self, numbers):
        return self.dataset.take(numbers)

    def batches(self):
        sampler = mmapds.DistributedBatchSampler(self.dataset, self.batch, num_replicas=1, rank=0, seed=7)
        self.loader = mmapds.DataLoader(self.dataset, batch_sampler=sampler, collate_fn=self.collate)
        for batch in self.loader:
            yield batch["tokens"], batch["labels"]

    def state(self):
        return self.loader.state_dict()


class FlatPadded(Flat):
    title, how = "mmapds, the file alone, by `pad_collate`", "the same, with lengths"
    collate = staticmethod(mmapds.pad_collate)


class FlatOfSmall(Flat):
    title, how = "mmapds, the file alone, in small records", "records of one size, of 512 tokens"
    path, options = "flat/tokens.bin", {"format": "fixed", "dtype": "uint16", "shape": 512}
    made = ("flat/tokens.bin.mmx",)


class OfMegatron(Flat):
    title, how = "mmapds, Megatron's files", "1.33 million documents"
    path, options, column = "megatron/tokens.bin", {"length": "items()"}, "length"
    made = ("megatron/*.mmx",)


class OfDatatrove(OfMegatron):
    title = "mmapds, datatrove's files"
    path, made = "datatrove/tokens.ds", ("datatrove/*.mmx",)


# ---- without a library -------------------------------------------------------------------------------------------


class Slices(Reader):
    title, package, how = "slices of an `np.memmap`, torch's loader", "numpy", "the file alone; no checks, no state"

    def open(self):
        self.mapped = whole(self.folder)
        self.dataset = range((len(self.mapped) - 1) // SIZE)

    def __getitem__(self, number):
        tokens = self.mapped[number * SIZE : (number + 1) * SIZE + 1].astype(np.int64)
        return {"tokens": tokens[:-1], "labels": tokens[1:]}

    def samples(self, numbers):
        return [self[number] for number in numbers.tolist()]

    def batches(self):
        order = torch.utils.data.DistributedSampler(self, num_replicas=1, rank=0, seed=7)
        for batch in torch.utils.data.DataLoader(self, self.batch, sampler=order, drop_last=True):
            yield batch["tokens"], batch["labels"]


# ---- of trainers -------------------------------------------------------------------------------------------------


class Megatron(Reader):
    title, package, how = "Megatron's `GPTDataset`", "megatron-core", "documents, shuffled; an index of blocks"
    made = ("megatron/cache/*",)

    def open(self):
        from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
        from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

        config = GPTDatasetConfig(
            random_seed=7,
            sequence_length=SIZE,
            blend=([str(self.folder / "megatron" / "tokens")], None),
            split="1,0,0",
            path_to_cache=str(self.folder / "megatron" / "cache"),
            tokenizer=Tokens(),
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
            create_attention_mask=False,
        )
        builder = BlendedMegatronDatasetBuilder(GPTDataset, [None, None, None], lambda: True, config)
        self.dataset = builder.build()[0]

    def samples(self, numbers):
        return [self.dataset[number] for number in numbers]

    def batches(self):
        loader = torch.utils.data.DataLoader(self.dataset, self.batch, drop_last=True)
        for batch in loader:
            yield batch["tokens"], batch["labels"]

    def expected(self, position):
        """The dataset has its documents in another order, and then its blocks."""
        if not hasattr(self, "starts"):
            sizes = lengths(self.folder)
            self.begins = np.cumsum(sizes) - sizes
            self.starts = np.concatenate([[0], np.cumsum(sizes[self.dataset.document_index])])
        begin = int(self.dataset.shuffle_index[position]) * SIZE
        first = np.searchsorted(self.starts, begin, side="right") - 1
        last = np.searchsorted(self.starts, begin + SIZE + 1)
        sizes = np.diff(self.starts[first : last + 1]).tolist()
        documents = self.begins[self.dataset.document_index[first:last]].tolist()
        joined = np.concatenate([self.tokens[at : at + size] for at, size in zip(documents, sizes, strict=True)])
        return joined[begin - self.starts[first] :][: SIZE + 1]


class Tokens:
    """As much of a tokenizer as Megatron asks for."""

    vocab_size, eod = 50_000, token_data.END
    unique_identifiers = {"class": "Tokens"}

    @property
    def pad(self):
        raise NotImplementedError  # as Megatron's own tokenizers without padding do; GPTDataset then takes another one


class Olmo(Reader):
    title, package, how = "OLMo-core's `NumpyFSLDataset`", "ai2-olmo-core", "the file alone; a file of the order"
    threads: int | None = None  # its own default, which is 4
    made = ("olmo/work/**/*",)

    def open(self):
        from olmo_core.data import DataCollator, NumpyFSLDataLoader, NumpyFSLDataset

        path, work = str(self.folder / "olmo" / "tokens.npy"), self.folder / "olmo" / "work"
        vocabulary = {"pad_token_id": 0, "eos_token_id": token_data.END, "vocab_size": 50_000}
        self.dataset = NumpyFSLDataset(path, sequence_length=SIZE, dtype=np.uint16, **vocabulary)
        self.dataset.work_dir = work
        self.dataset.prepare()
        self.loader = NumpyFSLDataLoader(
            self.dataset,
            collator=DataCollator(pad_token_id=0),
            global_batch_size=SIZE * self.batch,
            work_dir=work,
            seed=7,
            num_threads=self.threads,
        )
        self.loader.reshuffle(epoch=1)

    def samples(self, numbers):
        """Its labels are made of a batch, by its trainer; here they are slices of a sample, which is no work."""
        found = [self.dataset[number]["input_ids"] for number in numbers]
        return [{"tokens": tokens, "labels": tokens[1:]} for tokens in found]

    def batches(self):
        from olmo_core.data.utils import get_labels

        for batch in self.loader:
            yield batch["input_ids"], get_labels(batch)

    def state(self):
        return self.loader.state_dict()


class OlmoAlone(Olmo):
    title, how, threads = "OLMo-core's, without its 4 threads", "the same", 0


class Datatrove(Reader):
    title, package = "datatrove's `DatatroveFolderDataset`", "datatrove"
    how = "the file alone; blocks have one token more, and share none; labels are views"

    def open(self):
        from datatrove.utils.dataset import DatatroveFolderDataset

        self.dataset = DatatroveFolderDataset(str(self.folder / "datatrove"), SIZE, filename_pattern="*.ds")

    def samples(self, numbers):
        found = [self.dataset[number]["input_ids"] for number in numbers]
        return [{"tokens": tokens[:-1], "labels": tokens[1:]} for tokens in found]

    def batches(self):
        order = torch.utils.data.DistributedSampler(self.dataset, num_replicas=1, rank=0, seed=7)
        for batch in torch.utils.data.DataLoader(self.dataset, self.batch, sampler=order, drop_last=True):
            yield batch["input_ids"][:, :-1], batch["input_ids"][:, 1:]

    def expected(self, position):
        return self.tokens[position * (SIZE + 1) : (position + 1) * (SIZE + 1)]


# ---- frames ------------------------------------------------------------------------------------------------------


class Around(Flat):
    title, how = "mmapds, `around` of an array file", "a state before, and 16 actions"
    items, batch, made = 1, 64, ()

    def open(self):
        dataset = mmapds.open(self.folder / "frames.mma")
        self.dataset = dataset.around(OFFSETS, group="episode_index")

    def batches(self):
        sampler = mmapds.DistributedBatchSampler(self.dataset, self.batch, num_replicas=1, rank=0, seed=7)
        self.loader = mmapds.DataLoader(self.dataset, batch_sampler=sampler)
        yield from self.loader


class LeRobot(Reader):
    title, package, how = "lerobot's `LeRobotDataset`", "lerobot", "`delta_timestamps` of the same"
    items, batch, made = 1, 64, ("cache/**/*",)

    def open(self):
        times = {name: [each / token_data.FPS for each in offsets] for name, offsets in OFFSETS.items()}
        self.dataset = lerobot_dataset()("bench/frames", root=self.folder / "lerobot", delta_timestamps=times)

    def forget(self):
        shutil.rmtree(self.folder / "cache", ignore_errors=True)

    def samples(self, numbers):
        return [self.dataset[number] for number in numbers]

    def batches(self):
        generator = torch.Generator().manual_seed(7)
        yield from torch.utils.data.DataLoader(self.dataset, self.batch, shuffle=True, generator=generator)


def lerobot_dataset():
    """Import the class; torchvision of the index is built for another torch, and wants operators of its own."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    lerobot_dataset.library = library  # the operators live as long as this
    return LeRobotDataset


TOKENS = (Flat, FlatPadded, FlatOfSmall, OfMegatron, OfDatatrove, Megatron, Olmo, OlmoAlone, Datatrove, Slices)
CLIPS = (Around, LeRobot)
NAMES = {each.__name__: each for each in (*TOKENS, *CLIPS)}
