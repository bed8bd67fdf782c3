"""The core: facts become requests, requests become turns, turns leave deliveries; every arrow survives `kill -9`. It knows no Matrix."""
