"""Every setting with its limits and a sentence, and where its value comes from."""
