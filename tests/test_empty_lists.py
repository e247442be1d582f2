"""Lists that are all empty in a batch: their kind is not guessed in silence."""

import functools
import re
import warnings

import numpy as np
import pytest
import torch

import mmapds
from mmapds import CollateError, pack_collate, pad_collate

EMPTY = [{"id": 1, "tags": []}, {"id": 2, "tags": []}]
TAGGED = [{"id": 1, "tags": ["a"]}, {"id": 2, "tags": []}]


def test_lists_that_are_all_empty_are_taken_for_numbers_with_a_warning():
    message = (
        "samples[...]['tags']: expected a list that is not empty, found none in a batch, which now has numbers there; "
        "give the field a pad value of its own, in a dict, if it has numbers, or name it in lists=[...] if it has none"
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(message)}$"):
        batch = pad_collate(EMPTY, pad_value=-1)
    assert batch["tags"].shape == (2, 0)
    with pytest.warns(UserWarning, match=r"^samples\[\.\.\.\]\['meta'\]\['tags'\]: "):
        pad_collate([{"meta": {"tags": []}}])


def test_the_warning_comes_once():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for samples in (EMPTY, EMPTY * 2, EMPTY):
            pad_collate(samples)
    assert len(caught) == 1


def test_a_pad_value_of_its_own_says_numbers():
    assert pad_collate(EMPTY, pad_value={"tags": 0})["tags"].dtype == torch.int64
    assert pad_collate(EMPTY, pad_value={"tags": 0.5})["tags"].dtype == torch.get_default_dtype()
    nested = pad_collate([{"meta": {"tags": []}}], pad_value={"meta": {"tags": 0}})
    assert nested["meta"]["tags"].shape == (1, 0)
    with pytest.warns(UserWarning, match="'other'"):
        pad_collate([{"tags": [], "other": []}], pad_value={"tags": 0})


@pytest.mark.parametrize("collate", [pad_collate, functools.partial(pack_collate, pad_value=0)])
def test_named_fields_are_lists_in_every_batch(collate):
    for tags in (["a"], []), ([], []), ([1], [2, 3]), (["a", 1], [None]):
        samples = [{"tokens": [1, 2], "tags": each, "meta": {"tags": each, "x.y": each}} for each in tags]
        batch = collate(samples, lists=["tags", "meta.tags", r"meta.x\.y"])
        assert batch["tags"] == batch["meta"]["tags"] == batch["meta"]["x.y"] == list(tags)
        assert torch.is_tensor(batch["tokens"])
        assert "tags_lengths" not in batch
    vectors = collate([{"tokens": [1], "emb": np.ones(3)}, {"tokens": [2, 3], "emb": np.ones(3)}], lists=["emb"])
    assert [each.tolist() for each in vectors["emb"]] == [[1, 1, 1]] * 2


def test_a_field_whose_name_is_a_path_is_named_so(write):
    fields = mmapds.Fields({"meta.n": "int32", "tokens": "int32"})
    ds = mmapds.open(write([{"meta": {"n": n}, "tokens": [n]} for n in range(2)]), build=True, decode=fields)
    for collate in (pad_collate, pack_collate):
        assert collate(ds.take([0, 1]), lists=["meta.n"])["meta.n"] == [0, 1]


def test_positions_of_tuples_are_named_by_number():
    assert pad_collate([(1, []), (2, [])], lists=[1])[1] == [[], []]
    with pytest.warns(UserWarning, match=r"samples\[\.\.\.\]\[1\]: "):
        pad_collate([(1, []), (2, [])])


@pytest.mark.parametrize("collate", [pad_collate, pack_collate])
@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ("tokens", "lists = 'tokens', expected a list of names; give lists=['tokens']"),
        ([["tag"]], "lists = [['tag']], expected a list of names"),
        (["tag"], "lists: expected fields among 'tokens'"),
        (["meta.tag"], "lists: expected fields among 'tags', found 'tag'"),
        (["tokens.n"], "lists: expected a field, found 'tokens.n' inside one that has no fields"),
    ],
)
def test_names_that_no_field_has_are_an_error(collate, lists, message):
    with pytest.raises(CollateError, match=f"^{re.escape(message)}"):
        collate([{"tokens": [1, 2], "meta": {"tags": ["a"]}}], lists=lists)


def test_a_pack_leaves_empty_lists_beside_tokens_as_they_are():
    for tags in (["a"], []), ([], []):
        samples = [{"tokens": [1, 2], "tags": each, "meta": {"tags": each}} for each in tags]
        batch = pack_collate(samples)
        assert batch["tags"] == batch["meta"]["tags"] == list(tags)
        assert batch["tokens"].tolist() == [1, 2, 1, 2]
    assert pack_collate([{"tokens": []}])["tokens"].shape == (0,)
    with pytest.raises(
        CollateError, match=r"found 3; give lists=\[\.\.\.\] with the names of fields that have no entry"
    ):
        pack_collate([{"tokens": [1, 2], "emb": [0.5, 0.5, 0.5]}])


def test_fields_and_array_files_have_a_type(write, tmp_path):
    path = write([{"boxes": [[1, 2], [3]]}, {"boxes": []}, {"boxes": []}])
    ds = mmapds.open(path, build=True, decode=mmapds.Fields({"boxes": ("int32", "ragged")}))
    assert pad_collate(ds.take([1, 2]))["boxes"] == [[], []]
    with mmapds.Writer(tmp_path / "a.mma", {"tokens": ("int32", (None,)), "tags": "json"}) as writer:
        for _ in range(2):
            writer.write({"tokens": np.zeros(0, np.int32), "tags": []})
    stored = mmapds.open(tmp_path / "a.mma", build=True)
    assert pad_collate(stored.take([0, 1]), lists=["tags"])["tags"] == [[], []]
    assert pad_collate(stored.take([0, 1]), lists=["tags", "tokens"])["tokens"][0].shape == (0,)
    with pytest.warns(UserWarning, match="'tags'"):
        pad_collate(stored.take([0, 1]))
