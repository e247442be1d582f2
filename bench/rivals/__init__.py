"""mmapds beside other ways to keep, shuffle and batch samples: the same work on the same file, in one run.

`make rivals` makes an environment for them, runs `python -m bench.rivals` there, and writes tables and plots.
Each rival is a small module: what keeps records in `stores`, what shuffles an epoch in `samplers`, what cuts one into
batches under a budget of tokens, or into packs, in `planners`. Answers are compared before anything is timed.
"""
