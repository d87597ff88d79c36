"""Flags and variables by what becomes of each: data of the account, with reasons."""
