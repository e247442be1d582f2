"""docs/parallel.md in processes of gloo: which ranks share a batch, and the loss of a whole step."""

import pytest
import torch

import mmapds
from tests.support.docs import blocks
from tests.support.messages import check
from tests.support.worlds import world

N = 200
RECIPES = ("tensor parallel", "HSDP", "context parallel", "pipeline", "Megatron")
*CODE, LOSS = blocks("docs/parallel.md", "python")
BEFORE = """
import types
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
torch.set_num_threads(1)
begin()

def groups():
    # Tensor-parallel ranks are neighbours, as in Megatron.
    groups = [dist.new_group(list(range(first, world, 2))) for first in range(2)]
    return types.SimpleNamespace(get_data_parallel_group=lambda: groups[rank % 2])

def ids(batch):
    found = batch["id"] if isinstance(batch, dict) else [each["id"] for each in batch]
    return [int(each) for each in found]
"""
ALL = """
names = {"dist": dist, "torch": torch, "fully_shard": fully_shard, "ds": ds, "parallel_state": groups()}
names["train_step"] = lambda batch: read.append(batch and ids(batch))
for name, code in codes.items():
    read = []
    exec(code, names)
    if name == "context parallel":
        parts = list(names["parts"])
        names["loader"].set_epoch(0)
        whole = list(names["loader"])
        of_parts = [[each[name].tolist() for each in parts] for name in ("tokens", "position_ids")]
        say([[ids(batch) for batch in whole], *of_parts, [each["tokens"].tolist() for each in whole]])
    else:
        say(read or [ids(batch) for batch in names["loader"]])
"""


@pytest.fixture
def corpus(write):
    return write([{"id": i, "tokens": [i + 1] * (3 + i % 37)} for i in range(N)])


@pytest.mark.parametrize("ranks", [4, 8])
def test_the_recipes_give_ranks_of_a_place_one_batch_and_every_sample_once_over_the_places(tmp_path, corpus, ranks):
    mmapds.build(corpus, length="items(tokens)")
    codes = dict(zip(RECIPES, CODE[:2] + CODE[2:5], strict=True))
    said = world(BEFORE + f"ds = mmapds.open({corpus!r})\ncodes = {codes!r}\n" + ALL, tmp_path, ranks)
    sharing = {  # the ranks with each place
        "tensor parallel": [[place * 2, place * 2 + 1] for place in range(ranks // 2)],
        "HSDP": [[place] for place in range(ranks)],
        "pipeline": [[stage * (ranks // 4) + place for stage in range(4)] for place in range(ranks // 4)],
        "Megatron": [[place * 2, place * 2 + 1] for place in range(ranks // 2)],
    }
    sharing["context parallel"] = sharing["tensor parallel"]
    for each, name in enumerate(RECIPES):
        found = [of_rank[each] for of_rank in said]
        batches = [found[place[0]] if name != "context parallel" else found[place[0]][0] for place in sharing[name]]
        read = [record for own in batches for batch in own for record in batch]
        assert set(read) == set(range(N)), name
        assert len(read) < N + len(batches), name
        if name == "pipeline":
            for first, *between, last in sharing[name]:
                assert found[first] == found[last]
                assert all(found[stage] == [None] * len(found[first]) for stage in between)
        elif name == "context parallel":
            for first, second in sharing[name]:
                assert found[first][0] == found[second][0]
                for left, at, whole, right, after in zip(*found[first][1:], *found[second][1:3], strict=True):
                    width = len(whole[0])
                    assert [(a + b)[:width] for a, b in zip(left, right, strict=True)] == whole
                    assert len(left[0]) == len(right[0]) == -(-width // 2)
                    assert at[0] + after[0] == list(range(2 * len(left[0])))
        else:
            assert all(found[rank] == found[place[0]] for place in sharing[name] for rank in place), name


def test_a_job_goes_on_with_another_mesh(tmp_path, corpus):
    """DP 4 x TP 2, then DP 2 x TP 4, then DP 8: every sample once."""
    code = f"""
ds = mmapds.open({corpus!r}, build=True)
state = None
for places, stop in ((4, 3), (2, 7), (8, 10**9)):
    mesh = init_device_mesh("cpu", (places, 8 // places), mesh_dim_names=("dp", "tp"))
    loader = mmapds.DataLoader(ds, 4, shuffle=True, mesh=mesh["dp"], num_workers=1, collate_fn=ids)
    if state is not None:
        loader.load_state_dict(state)
    read = []
    for _, batch in zip(range(stop), loader):
        read.append(batch)
    state = loader.state_dict()
    say([mesh["dp"].get_local_rank(), read, state])
"""
    said = world(BEFORE + code, tmp_path, 8)
    read = []
    for part in zip(*said, strict=True):
        own = {}
        for place, batches, state in part:
            assert own.setdefault(place, batches) == batches
            assert state == part[0][2]
        read += [record for batches in own.values() for batch in batches for record in batch]
    assert sorted(read) == list(range(N))


def test_what_a_rank_of_a_mesh_has_otherwise_is_named_before_the_first_batch(tmp_path, corpus, write):
    """Of ranks that share their place with others, too."""
    other = write([{"id": i, "tokens": [1]} for i in range(N)], "other.jsonl")
    for path in (corpus, other):
        mmapds.build(path)
    code = f"""
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
ds, other = (mmapds.open(path) for path in ({corpus!r}, {other!r}))
is_other = rank == 3
for given in ({{"seed": 1}}, {{"start_step": 2}}, {{"batch_size": 5}}, {{"dataset": other}}):
    own = {{"dataset": ds, "batch_size": 4, **(given if is_other else {{}})}}
    say(tried(lambda: list(DistributedBatchSampler(**own, mesh=mesh["dp"]))))
say(tried(lambda: list(DistributedBatchSampler(ds, 4, mesh=mesh["tp" if rank == 1 else "dp"]))))
group = dist.new_group([0, 2])
if rank == 1:
    for mesh_of in (group, init_device_mesh):
        say(tried(lambda: DistributedSampler(ds, mesh=mesh_of)))
    say(tried(lambda: DistributedSampler(ds, 2, mesh=mesh["dp"])))
    say(tried(lambda: DataLoader(ds, sampler=DistributedSampler(ds, 1, 0), mesh=mesh["dp"])))
    say(tried(lambda: DistributedBatchSampler(DistributedSampler(ds, 1, 0), 4, mesh=mesh["dp"])))
if rank == 2:
    dist.destroy_process_group(group)
    say(tried(lambda: DistributedSampler(ds, mesh=group)))
dist.barrier()
places = mesh["dp"]
dist.destroy_process_group()
say(tried(lambda: DistributedSampler(ds, mesh=places)))
"""
    code = code.replace(
        "if rank == 1:",
        """say(tried(lambda: list(DistributedBatchSampler(ds, 4, mesh=mesh["dp"] if rank != 2 else None))))
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    DistributedBatchSampler(ds, 4, mesh=mesh)
    say(str(warned[0].message))
if rank == 1:""",
        1,
    )
    first, one, two, three = world(BEFORE + "import warnings\n" + code, tmp_path, 4)
    expected = [
        "seed = 1 on rank 3, expected 0 as on rank 0",
        "first_step = 2 on rank 3, expected 0 as on rank 0",
        "batch_size = 5 on rank 3, expected 4 as on rank 0",
        "dataset = ",
        "rank = 1 on ranks 1, 2 and 3, expected it on 2; pass the rank of the process, or mesh=",
        "num_replicas = 4 on rank 2, expected 2 as on rank 0; give mesh= on all ranks or on none",
        "mesh: expected dimensions of data parallel ranks, found 'tp'; give those alone, as mesh['dp']",
    ]
    for k, start in enumerate(expected):
        assert first[k] == one[k] == two[k] == three[k]
        assert first[k].startswith(start), first[k]
    wrong = [
        "mesh: expected one with rank 1 in it, found another",
        "mesh: expected a DeviceMesh or a ProcessGroup of torch.distributed, found ",
        "num_replicas = 2, expected None beside mesh=, which has it",
        "mesh: expected None beside a sampler",
        "mesh: expected None beside a sampler",
        "mesh: expected a process group of torch.distributed, found none",
    ]
    assert [message.startswith(start) for message, start in zip(one[7:], wrong, strict=True)] == [True] * len(wrong)
    assert two[7].startswith("mesh: expected a process group, found one that was destroyed")
    for message in (*first, *one[7:], two[7]):
        check(message)


# ---- the loss of a step --------------------------------------------------------------------------------------


MODEL = """
import torch

def losses_of(model, batch):
    tokens, lengths = batch["tokens"], batch["tokens_lengths"]
    losses = torch.nn.functional.cross_entropy(model(tokens).transpose(1, 2), tokens % 7, reduction="none")
    return losses * (torch.arange(tokens.shape[1]) < lengths[:, None])

def new_model():
    torch.manual_seed(0)
    layers = torch.nn.Embedding(256, 8), torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 7)
    return torch.nn.Sequential(*layers).double()
"""


def test_gradients_of_dp_tp_and_accumulation_are_those_of_one_process(tmp_path, corpus):
    """Five optimizer steps under a token budget, with DDP over the places of a mesh."""
    mmapds.build(corpus, length="items(tokens)")
    ddp = f"""
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
ds = mmapds.open({corpus!r})
batches = mmapds.TokenBudgetBatchSampler(ds, 80, group_size=8, mesh=mesh["dp"])
loader = mmapds.DataLoader(ds, batch_sampler=batches, collate_fn=mmapds.pad_collate)
model = new_model()
parallelize_module(model, mesh["tp"], {{"1": ColwiseParallel(), "3": RowwiseParallel()}})
places = mesh["dp"].get_group()

class Averaged:  # what DDP does to gradients, here of parameters that TP shards
    def __init__(self, optimizer):
        self.optimizer, self.zero_grad = optimizer, optimizer.zero_grad
    def step(self):
        for each in model.parameters():
            grad = each.grad.to_local() if hasattr(each.grad, "to_local") else each.grad
            dist.all_reduce(grad, group=places)
            grad /= mesh["dp"].size()
        self.optimizer.step()

optimizer = Averaged(torch.optim.SGD(model.parameters(), 0.1))
names = vars()
class Five(Exception):
    pass
def steps(*args, **options):
    for step, found in enumerate(type(loader).steps(loader, *args, **options)):
        if step == 5:
            return
        yield found
loader.steps = steps
exec({LOSS!r}, names)
full = [each.full_tensor() if hasattr(each, "full_tensor") else each for each in model.parameters()]
say([each.detach().tolist() for each in full])
"""
    said = world(BEFORE + MODEL + ddp, tmp_path, 4)
    names: dict = {}
    exec(MODEL, names)
    ds = mmapds.open(corpus)
    alone = mmapds.TokenBudgetBatchSampler(ds, 80, group_size=8, num_replicas=1, rank=0)
    model = names["new_model"]()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(5):
        records = [record for k in range(8) for record in alone.indices_at(step * 8 + k)[0].tolist()]
        batch = mmapds.pad_collate(ds.take(records))
        losses = names["losses_of"](model, batch)
        assert alone.total_at(step * 8, 8) == int(batch["tokens_lengths"].sum())
        optimizer.zero_grad()
        (losses.sum() / batch["tokens_lengths"].sum()).backward()
        optimizer.step()
    for (found,) in said:
        for each, expected in zip(found, model.parameters(), strict=True):
            torch.testing.assert_close(torch.tensor(each, dtype=torch.float64), expected, rtol=0, atol=1e-6)
