"""Topics and their subscriptions, as SNS has them: who is told, how it is proven that we said it, and how it travels."""
