"""What must end, known before anything is decoded."""
