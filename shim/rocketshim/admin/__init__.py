"""Tools for the operator: dead letters, delayed and parked messages, consumer groups, ACLs and the doctor."""
