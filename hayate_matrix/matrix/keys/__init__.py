"""Keys of devices, of rooms and of the account itself."""
