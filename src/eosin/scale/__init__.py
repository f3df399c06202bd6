"""Where work runs: in this process, in several on one machine, or on a Ray cluster."""
