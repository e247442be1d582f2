"""The pages for those who come from other libraries: both sides of each pipeline run, and give the same samples."""

import gc
import io
import itertools
import json
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import mmapds
from tests.support.docs import blocks, table
from tests.support.tars import archive


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Run all Python of a page as a module that workers can import; return its names."""
    monkeypatch.chdir(tmp_path)
    for name in ("HF_HOME", "HF_DATASETS_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def run(page):
        module = SimpleNamespace(__name__="pipeline")
        monkeypatch.setitem(sys.modules, "pipeline", module)
        Path("pipeline.py").write_text(code := "\n".join(blocks(page, "python")))
        exec(compile(code, "pipeline.py", "exec"), module.__dict__)
        return module

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the other libraries, and of files that WebDataset leaves open
        yield run
        gc.collect()


def epoch(loader, key):
    """The samples of an epoch, by key, cut out of their padding."""
    found = {}
    for batch in loader:
        for i, ids, mask in zip(batch[key].tolist(), batch["input_ids"], batch["attention_mask"], strict=True):
            assert i not in found
            found[i] = ids[mask.bool()].tolist()
    return found


def test_a_pipeline_of_hugging_face_datasets(tmp_path, module):
    records = [{"id": i, "text": f"text {i} " + "é" * (i * 7919 % 150)} for i in range(500)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    names = module("docs/from-huggingface.md")
    kept = [names.tokenize(each) for each in records if len(each["text"].encode()) <= 200]
    assert 0 < len(kept) < len(records)
    assert list(names.ours) == list(names.theirs) == kept
    assert epoch(names.our_loader, "id") == epoch(names.their_loader, "id")
    assert [each["input_ids"].tolist() for each in names.tokens] == [names.tokenize(r)["input_ids"] for r in records]
    assert names.tokens.lengths.tolist() == [len(each["text"].encode()) for each in records]


def images(numbers):
    """Members of samples with images of different modes."""
    for i in numbers:
        png = io.BytesIO()
        pixels = np.random.default_rng(i).integers(0, 256, (4, 5, 3), np.uint8)
        Image.fromarray(pixels).convert(("RGB", "L", "P")[i % 3]).save(png, "png")
        yield from ((f"{i:03}.png", png.getvalue()), (f"{i:03}.cls", b"%d" % i))


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_pipeline_of_webdataset(tmp_path, module):
    for shard in range(2):
        (tmp_path / f"images-{shard}.tar").write_bytes(archive(list(images(range(20 * shard, 20 * shard + 20)))))
    names = module("docs/from-webdataset.md")

    def by_label(loader):
        batches = [zip(labels.tolist(), images, strict=True) for images, labels in loader]
        return dict(sorted(itertools.chain.from_iterable(batches), key=lambda pair: pair[0]))

    ours, theirs = by_label(names.our_loader), by_label(names.their_loader)
    assert list(ours) == list(theirs) == list(range(40))
    for label, image in ours.items():
        assert image.shape == (4, 5, 3)
        assert torch.equal(image, theirs[label])
    assert len(names.our_loader) == 5


@pytest.mark.parametrize("page", ["docs/from-huggingface.md", "docs/from-webdataset.md", "docs/from-mosaicml.md"])
def test_every_name_of_ours_in_the_tables_exists(page):
    for _, ours in table(page, "## Calls"):
        for name in ours:
            if name.startswith("mmapds."):
                assert getattr(mmapds, name.removeprefix("mmapds.").split("(")[0].split(".")[0])
            elif name.startswith("ds.") and "(" in name:
                assert hasattr(mmapds.Dataset, name.removeprefix("ds.").split("(")[0].split("[")[0]), name
