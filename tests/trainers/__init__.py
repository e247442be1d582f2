"""Jobs of real trainers in several processes: each reads every sample once an epoch, also where it is interrupted."""
