"""A Matrix bot that loses nothing, says nothing twice and lets nothing cross from one room to another."""

__version__ = "0.1.0"
