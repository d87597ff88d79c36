"""The decode clock: all running decodes of a lane advance together (DESIGN §5)."""
