"""Agent runtimes behind one contract, and the tools that they may use."""
