"""What requests went through, and how often: where their time went, rates, figures by model."""
