"""The paper's tables and figures from one command: exhibits as data, and one runner."""
