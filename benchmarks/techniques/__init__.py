"""What combines with any layout: precision, activation checkpointing."""
