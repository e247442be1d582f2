"""Ways to cut an epoch into batches under a budget of tokens, or into packs: a module each, with a `Planner`."""

BUDGETS = ("mmapds", "windows", "fairseq_style", "lhotse")
PACKERS = ("mmapds_packs", "best_fit", "trl")
"""The modules, in the order of the tables."""
