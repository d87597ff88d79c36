"""Seesaw: a client that computes prompts in one layout and answers in another."""
