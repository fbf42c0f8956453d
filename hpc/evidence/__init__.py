"""What convinces a stranger: the witnessed log, the offline bundle, the capsule that renders a run's script again."""
