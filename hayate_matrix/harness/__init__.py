"""The loops: intake, lanes, turns, delivery. It knows no Matrix."""
