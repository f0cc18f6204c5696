"""The models' layers. All are tensor-parallel, and each parameter loads its own part of a checkpoint."""
