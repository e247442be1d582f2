"""Tokens and frames for bench/rivals/blocks.py: one file of tokens, under the names that each reader wants."""

import os
import shutil

import numpy as np

from bench.support.data import DATA, once

FOLDER = DATA / "blocks"
LARGE = 10**9
SMALL = 2048 * 512 + 512
END = 0  # the last token of each document
EPISODES, FRAMES = 100, 500
OFFSETS = {"observation.state": range(-1, 1), "action": range(16)}
FPS = 50
NUMBERS = 14  # of a state, and of an action


def tokens_folder(count):
    """Make the tokens, unless they are there; return their folder.

    Documents have 500 to 1,000 tokens. All names are of one file, which is in the page cache once.
    """
    folder = FOLDER / str(count)
    names = ("flat/blocks.bin", "megatron/tokens.bin", "datatrove/tokens.ds", "olmo/tokens.npy")
    if all((folder / name).exists() for name in (*names, "megatron/tokens.idx")):
        return folder
    for name in ("flat", "megatron", "datatrove", "olmo"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    lengths = random.integers(500, 1001, count // 500 + 1).astype(np.int32)
    lengths = lengths[: np.searchsorted(np.cumsum(lengths), count) + 1]
    lengths[-1] -= lengths.sum(dtype=np.int64) - count
    ends = np.cumsum(lengths, dtype=np.int64)
    with once(folder / "flat" / "tokens.bin") as file:
        for begin in range(0, count, 10**8):
            part = random.integers(1, 50_000, min(10**8, count - begin), np.uint16)
            own = ends[(ends > begin) & (ends <= begin + len(part))]
            part[own - 1 - begin] = END
            file.write(part.data)
    for name in names:
        (folder / name).unlink(missing_ok=True)
        os.link(folder / "flat" / "tokens.bin", folder / name)
    ends.astype("<u8").tofile(folder / "datatrove" / "tokens.ds.index")
    _write_megatron_index(folder / "megatron" / "tokens.idx", lengths, ends)
    return folder


def _write_megatron_index(path, lengths, ends):
    """Write an index of Megatron: one sequence a document."""
    with once(path) as file:
        file.write(b"MMIDIDX\0\0" + np.array([1], "<u8").tobytes() + bytes([8]))  # 8 is the code of uint16
        file.write(np.array([len(lengths), len(lengths) + 1], "<u8").tobytes())
        file.write(lengths.astype("<i4").data)
        file.write(((ends - lengths) * 2).astype("<i8").data)
        file.write(np.arange(len(lengths) + 1, dtype="<i8").data)


def whole(folder):
    """Return all tokens, mapped."""
    return np.memmap(folder / "flat" / "tokens.bin", np.uint16, "r")


def lengths(folder):
    """Return the tokens of each document."""
    return np.diff(np.fromfile(folder / "datatrove" / "tokens.ds.index", "<u8").astype(np.int64), prepend=0)


def frames_folder(episodes):
    """Make episodes of robots without videos, for both readers, unless they are there; return their folder."""
    folder = FOLDER / f"frames-{episodes}"
    if (folder / "made").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    _write_lerobot(folder / "lerobot", episodes)
    _write_arrays(folder / "frames.mma", episodes)
    (folder / "made").touch()
    return folder


def _episode(number):
    """Return the states and actions of an episode."""
    found = np.random.default_rng(number).random((2, FRAMES, NUMBERS), np.float32)
    return found[0], found[1]


def _write_lerobot(root, episodes):
    from bench.rivals.token_readers import lerobot_dataset  # imports much

    shape = {"dtype": "float32", "shape": (NUMBERS,), "names": None}
    features = {"observation.state": shape, "action": shape}
    made = lerobot_dataset().create("bench/frames", FPS, features, root=root, use_videos=False)
    for number in range(episodes):
        for state, action in zip(*_episode(number), strict=True):
            made.add_frame({"observation.state": state, "action": action, "task": "reach"})
        made.save_episode()
    made.finalize()


def _write_arrays(path, episodes):
    import mmapds

    vector, number = ("float32", (NUMBERS,)), "int64"
    indices = dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), number)
    schema = {"observation.state": vector, "action": vector, "timestamp": "float32", "task": "str"} | indices
    with mmapds.Writer(path, schema) as writer:
        for episode in range(episodes):
            for frame, (state, action) in enumerate(zip(*_episode(episode), strict=True)):
                whole = episode * FRAMES + frame
                numbers = {"frame_index": frame, "episode_index": episode, "index": whole, "task_index": 0}
                own = {"observation.state": state, "action": action, "timestamp": frame / FPS, "task": "reach"}
                writer.write(own | numbers)
