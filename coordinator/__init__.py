"""The main process of the daemon: it decides, and holds locks and checkpoints; workers touch logs and clients."""
