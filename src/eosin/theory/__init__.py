"""What is known before anything is decoded."""
