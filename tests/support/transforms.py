"""Functions of samples and of batches, importable by worker processes."""


def doubled(sample):
    """A sample with twice its number."""
    return {**sample, "id": 2 * sample["id"]}


def doubled_each(samples):
    """The same of a batch."""
    return [doubled(sample) for sample in samples]


def next_of(number, step=1):
    return number + step


def identifier(sample):
    return sample["id"]


def identifiers(samples):
    return [sample["id"] for sample in samples]


def fails_at_11(sample):
    """Raise a KeyError, with a cause, at one sample."""
    if sample["id"] == 11:
        raise KeyError("no such label") from ZeroDivisionError("the cause")
    return sample["id"]


def fails_at_11_of_a_batch(samples):
    return [fails_at_11(sample) for sample in samples]


def as_list(samples):
    """Collate to what was sampled."""
    return list(samples)


def total(sample):
    """A sample of a zip as one number."""
    return sum(each["id"] for each in sample.values())
