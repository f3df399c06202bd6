"""The paper's tables and figures from one command: exhibits as data, one plan, one runner."""
