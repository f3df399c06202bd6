"""Language models: a core (recurrent or transformer) and a head."""
