"""Doctor room: what this machine can do. It looks, and changes nothing; devices in a child."""
