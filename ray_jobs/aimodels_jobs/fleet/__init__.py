"""What runs in Ray: a cluster, movers as its actors, the coordinator as a detached one. Nobody else imports Ray."""
