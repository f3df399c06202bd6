"""What never ends: cycles of tokens that a decoder cannot leave, proved."""
