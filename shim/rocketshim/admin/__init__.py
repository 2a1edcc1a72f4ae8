"""What an operator looks at and does: dead letters, waiting messages, groups, ACLs, the doctor."""
