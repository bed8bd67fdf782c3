"""Agent runtimes behind one contract, and the tools."""
