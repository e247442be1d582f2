"""The recipes of docs/parallel.md that need accelerate or Lightning, in processes of gloo."""

import pytest
import torch

import mmapds
from tests.support.docs import blocks
from tests.support.worlds import world

N = 120
ACCELERATE, LIGHTNING = blocks("docs/parallel.md", "py")
BEFORE = """
import torch
os.environ |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1"}
os.environ |= {"MASTER_PORT": "29500", "ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": "", "GROUP_RANK": "0"}
os.environ["TORCHELASTIC_RUN_ID"] = "tests"
torch.set_num_threads(1)
begin()

def ids_of(batch):
    return torch.tensor([each["id"] for each in batch])
"""
CODE = f"""
from accelerate.parallelism_config import ParallelismConfig
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import ModelParallelStrategy
class Accelerator:  # accelerate refuses a mesh on CPUs: this is the mesh that it makes
    def __init__(self, parallelism_config):
        self.torch_device_mesh = parallelism_config.build_device_mesh("cpu")

read = []
{ACCELERATE}
read += [[each["id"] for each in batch] for batch in loader]
say(read)

read = []
options = {{"accelerator": "cpu", "devices": world, "max_epochs": 1, "logger": False, "enable_checkpointing": False}}
options |= {{"enable_progress_bar": False, "enable_model_summary": False}}
{LIGHTNING}

class Learner(Model):
    def configure_model(self):
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch):
        read.append(batch.tolist())
        return self.layer(batch[:, None].float()).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-6)

trainer.fit(Learner())
say(read)
"""


@pytest.mark.parametrize("ranks", [4, 8])
def test_ranks_of_a_place_read_one_batch(tmp_path, write, ranks):
    path = write([{"id": i} for i in range(N)])
    mmapds.build(path)
    for said in zip(*world(f"{BEFORE}ds = mmapds.open({path!r})\n{CODE}", tmp_path, ranks), strict=True):
        assert said[0::2] == said[1::2]
        found = sorted(record for batches in said[::2] for batch in batches for record in batch)
        assert sorted(set(found)) == list(range(N))
        assert len(found) < N + ranks


# ---- the loss of a step --------------------------------------------------------------------------------------


LOSS = """
import logging
import lightning.pytorch as pl
from transformers import Trainer, TrainingArguments

def new_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Embedding(256, 8), torch.nn.Linear(8, 7))

def losses_of(logits, labels):
    return torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="sum", ignore_index=-100)

def collate(samples):
    batch = pad_collate(samples, lengths=False)
    batch["labels"] = torch.where(batch["tokens"] > 0, batch["tokens"] % 7, -100)
    return batch

def new_loader():
    batches = TokenBudgetBatchSampler(ds, 100, group_size=4)
    return mmapds.DataLoader(ds, batch_sampler=batches, collate_fn=collate)

class Wrapped(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = new_model()
    def forward(self, tokens, **_):
        return {"logits": self.layers(tokens)}

class Own(Trainer):
    def get_train_dataloader(self):
        return new_loader()

def loss_of(outputs, labels, num_items_in_batch):
    return losses_of(outputs["logits"], labels) / num_items_in_batch

options = {"max_steps": 3, "gradient_accumulation_steps": 2, "learning_rate": 0.1, "lr_scheduler_type": "constant"}
options |= {"optim": "sgd", "max_grad_norm": 0, "report_to": "none", "save_strategy": "no", "use_cpu": True}
args = TrainingArguments(FOLDER, remove_unused_columns=False, disable_tqdm=True, logging_strategy="no", **options)
trainer = Own(Wrapped(), args, train_dataset=ds, compute_loss_func=loss_of)
trainer.train()
say([each.tolist() for each in trainer.model.parameters()])

class Learner(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers, self.loader = new_model(), new_loader()
    def train_dataloader(self):
        return self.loader
    def training_step(self, batch, batch_idx):
        every, ranks = self.trainer.accumulate_grad_batches, self.trainer.world_size
        tokens = self.loader.total_at(batch_idx // every * every, every)
        return losses_of(self.layers(batch["tokens"]), batch["labels"]) / tokens * ranks * every
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
learner = Learner()
lightning = pl.Trainer(
    max_steps=3, accumulate_grad_batches=2, accelerator="cpu", devices=world, strategy="ddp",
    use_distributed_sampler=False, **quiet
)
lightning.fit(learner)
say([each.tolist() for each in learner.parameters()])
"""


def test_steps_of_two_ranks_and_accumulation_train_as_one_process_does(tmp_path, write):
    path = write([{"id": i, "tokens": [i + 1] * (3 + i % 37)} for i in range(N)])
    mmapds.build(path, length="items(tokens)")
    said = world(f"FOLDER = {str(tmp_path)!r}\n{BEFORE}ds = mmapds.open({path!r})\n{LOSS}", tmp_path, 2)
    ds = mmapds.open(path)
    alone = mmapds.TokenBudgetBatchSampler(ds, 100, group_size=4, num_replicas=1, rank=0)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(256, 8), torch.nn.Linear(8, 7))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(3):
        records = [record for k in range(4) for record in alone.indices_at(4 * step + k)[0].tolist()]
        tokens = torch.cat([torch.tensor(ds[record]["tokens"]) for record in records])
        assert len(tokens) == alone.total_at(4 * step, 4)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(tokens), tokens % 7).backward()
        optimizer.step()
    for of_rank in said:
        for parameters in of_rank:
            for found, expected in zip(parameters, model.parameters(), strict=True):
                torch.testing.assert_close(torch.tensor(found), expected, rtol=0, atol=1e-6)
